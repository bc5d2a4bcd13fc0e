#!/usr/bin/env python3
"""Draws the pictures of docs/benchmarks.md from graph_replay's JSON, as SVG and PNG. What tells lines and bars apart is
marker, dash and hatch, so they read in black and white.

    bench/plot.py REPORT.json... --into docs/benchmarks

Needs matplotlib (bench/requirements.txt). A picture whose rows are in none of the reports is left out and named."""

import argparse
import json
import pathlib
import sys

POLICIES = {"live": ("stepgraph: live region only", "o", "-"),
            "early-exit": ("grid of the captured width, early exit", "s", "--"),
            "full-width": ("every captured column", "^", ":"),
            "bounded-grid": ("bounded grid", "D", "-."),
            "block-a-row": ("a block a row", "v", (0, (1, 3)))}
GROUPS = {"prologue": "", "metadata": "///", "sparse indices": "---", "attention": "...", "model": "xxx", "sampling": "\\\\\\", "speculation": "ooo",
          "epilogue": "+++", "between replays": "", "not explained": "***"}
SHADES = {"prologue": "0.95", "metadata": "0.85", "sparse indices": "0.8", "attention": "0.75", "model": "0.65", "sampling": "0.9", "speculation": "0.8",
          "epilogue": "0.7", "between replays": "0.35", "not explained": "1.0"}


def load(paths):
    """All rows, each with the report that it is of: a curve is of one run."""
    return [{**row, "report": str(path)} for path in paths for row in json.loads(pathlib.Path(path).read_text())["rows"]]


def chosen(rows, name, **wanted):
    return [row for row in rows if row["name"] == name
            and all(row["parameters"].get(key) == value for key, value in wanted.items())]


def largest_family(rows, vary, curve):
    """Of rows that differ in more than `vary` and `curve`, the family that shares all else, its report too, and has most
    values of `vary`; its rows by curve, sorted by `vary`, and what it shares."""
    families = {}
    for row in rows:
        shared = tuple(sorted((key, str(value)) for key, value in row["parameters"].items()
                              if key not in (vary, curve, "noisy")))
        families.setdefault((row.get("report"), shared), []).append(row)
    best = max(families.values(), key=lambda family: (len({row["parameters"][vary] for row in family}), len(family)), default=[])
    if len({row["parameters"][vary] for row in best}) < 2:
        return {}, {}
    curves = {}
    for row in sorted(best, key=lambda row: row["parameters"][vary]):
        curves.setdefault(row["parameters"].get(curve), []).append(row)
    return curves, best[0]["parameters"]


def step_against_width(rows):
    return largest_family(chosen(rows, "step", step="decode"), "width", "policy")


def metadata_against_live(rows):
    return largest_family(chosen(rows, "group: metadata", step="decode"), "live", "policy")


def tokens_against_batch(rows):
    """[(batch, plain, speculative)] in tokens a second, and what the rounds share."""
    curves, shared = largest_family([row for row in rows if row["name"] == "speculation"], "batch", "policy")
    points = [(row["parameters"]["batch"], row["speculation"]["plain_tokens_per_second"],
               row["speculation"]["tokens_per_second"]) for row in curves.get("live", [])]
    return points, shared


def round_shares(rows):
    """[(batch, {group: microseconds})] of the rounds, and what they share."""
    points, shared = tokens_against_batch(rows)
    bars = []
    for batch, _, _ in points:
        same = {**shared, "batch": batch}
        same.pop("noisy", None)
        shares = {}
        for group in GROUPS:
            found = chosen(rows, f"group: {group}", **same)
            if found:
                shares[group] = max(0.0, found[-1]["median"])
        bars.append((batch, shares))
    return bars, shared


def title(what, shared):
    return f"{what}\n{shared['model']} shape, {shared['on']}, page {shared['page']}"


def draw_policies(axes, curves, x, scale=1.0):
    for policy, rows in curves.items():
        label, marker, dash = POLICIES.get(policy, (str(policy), "x", "-"))
        medians = [row["median"] * scale for row in rows]
        spread = [[(row["median"] - row["minimum"]) * scale for row in rows],
                  [(row["maximum"] - row["median"]) * scale for row in rows]]
        axes.errorbar([row["parameters"][x] for row in rows], medians, yerr=spread, label=label, marker=marker, linestyle=dash,
                      color="black", markerfacecolor="white", capsize=2, linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(True, which="both", color="0.9")
    axes.legend(frameon=False)


def plain_numbers(axis):
    """Labels 1, 2 and 5 of each decade on a logarithmic axis, written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def binary_numbers(axis):
    axis.set_major_formatter(lambda value, _: f"{value / 1024:g}K" if value >= 1024 else f"{value:g}")


def picture_width(plt, rows):
    curves, shared = step_against_width(rows)
    if not curves:
        return None
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    draw_policies(axes, curves, "width")
    axes.set_title(title(f"Decode step, batch {shared['batch']}, {shared['live']:,} live tokens a row", shared), fontsize=10)
    axes.set_xlabel("captured width, tokens")
    axes.set_ylabel("step, us")
    binary_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    return figure


def picture_metadata(plt, rows):
    curves, shared = metadata_against_live(rows)
    if not curves:
        return None
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    draw_policies(axes, curves, "live")
    axes.set_title(title(f"Metadata of a decode step, batch {shared['batch']}, captured width {shared['width']:,}", shared),
                   fontsize=10)
    axes.set_xlabel("live tokens a row")
    axes.set_ylabel("metadata, us")
    axes.set_yscale("linear")
    axes.set_ylim(bottom=0)
    binary_numbers(axes.xaxis)
    return figure


def picture_tokens(plt, rows):
    points, shared = tokens_against_batch(rows)
    if not points:
        return None
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    batches = [point[0] for point in points]
    axes.plot(batches, [point[1] for point in points], "o-", color="black", markerfacecolor="white", label="plain decoding")
    axes.plot(batches, [point[2] for point in points], "s--", color="black", markerfacecolor="black",
              label=f"rounds of {shared['drafts']} drafts, simulated accept: {shared['accept']}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(True, which="both", color="0.9")
    axes.legend(frameon=False)
    axes.set_title(title(f"Tokens a second, {shared['live']:,} live tokens a row", shared), fontsize=10)
    axes.set_xlabel("batch, rows")
    axes.set_ylabel("tokens/s")
    binary_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    return figure


def picture_round(plt, rows):
    bars, shared = round_shares(rows)
    if not bars:
        return None
    figure, axes = plt.subplots(figsize=(7.2, 4.4))
    for place, (batch, shares) in enumerate(bars):
        whole, bottom = sum(shares.values()), 0.0
        for group, hatch in GROUPS.items():
            if group not in shares:
                continue
            height = 100 * shares[group] / whole
            axes.bar(place, height, bottom=bottom, color=SHADES[group], edgecolor="black", hatch=hatch, linewidth=0.6, width=0.7,
                     label=group if place == 0 else None)
            bottom += height
        axes.text(place, 101, f"{whole:,.0f} us", ha="center", fontsize=8)
    axes.set_xticks(range(len(bars)), [str(batch) for batch, _ in bars])
    axes.set_ylim(0, 108)
    axes.set_xlabel("batch, rows")
    axes.set_ylabel("share of a round's time, %")
    axes.set_title(title(f"Where a round goes: {shared['drafts'] - 1} draft decodes, verify, draft-extend, "
                         f"{shared['live']:,} live tokens a row", shared), fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, bbox_to_anchor=(1.0, 0.5), loc="center left", handleheight=1.6)
    return figure


PICTURES = {"step_against_width": picture_width, "metadata_against_live": picture_metadata,
            "tokens_against_batch": picture_tokens, "round_shares": picture_round}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("reports", nargs="+", metavar="REPORT.json")
    arguments.add_argument("--into", default="docs/benchmarks", help="folder of the pictures")
    wanted = arguments.parse_args()
    try:
        rows = load(wanted.reports)
    except (OSError, ValueError, KeyError) as failure:
        sys.exit(f"plot.py: {failure}")
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot.py: matplotlib is not there: pip install -r bench/requirements.txt")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "stepgraph"  # the same file from the same figures
    import matplotlib.pyplot as plt

    folder = pathlib.Path(wanted.into)
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PICTURES.items():
        figure = make(plt, rows)
        if figure is None:
            print(f"{name}: no such rows in the reports")
            continue
        for ending, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 130})):
            figure.savefig(folder / f"{name}.{ending}", bbox_inches="tight", **options)
        plt.close(figure)
        print(f"{name}: {folder / name}.svg, .png")


if __name__ == "__main__":
    main()
