"""Gathers prompts that people wrote from clones of public repositories; only questions are taken, never answers.

    python gather_prompts.py FOLDER OUT      FOLDER holds the clones under the names in SOURCES
"""

import argparse
import json
import random
import re
from pathlib import Path

import prompts

lines = lambda path: path.read_text(encoding="utf-8", errors="replace").splitlines()


def trivia(folder):
    """OpenTriviaQA: a question follows `#Q` and ends before its answer, `^`."""
    for path in sorted((folder / "categories").iterdir()):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield from (" ".join(found.split()) for found in re.findall(r"^#Q (.+?)^\^", text, re.M | re.S))


def natural_questions(folder):
    for path in sorted((folder / "nq_open").glob("*.jsonl")):
        for line in lines(path):
            if line.startswith("{"):
                question = json.loads(line)["question"]
                yield question[0].upper() + question[1:].rstrip("? ") + "?"


def school_math(folder):
    for line in lines(folder / "grade_school_math/data/train.jsonl"):
        yield json.loads(line)["question"]


def instructions(folder):
    for name in ("Codegen/codegen-instruct.json", "Roleplay/roleplay-simple-deduped-roleplay-instruct.json"):
        for each in json.loads((folder / name).read_text()):
            yield (each["instruction"] + "\n" + each["input"]).strip()


def seeds(folder):
    for name in ("data/seed_tasks.jsonl", "human_eval/user_oriented_instructions.jsonl"):
        for line in lines(folder / name):
            each = json.loads(line)
            for instance in each["instances"]:
                yield (each["instruction"] + "\n" + instance["input"]).strip()


SOURCES = {  # folder: what reads it, where it is from, licence
    "OpenTriviaQA": (trivia, "github.com/uberspot/OpenTriviaQA", "CC BY-SA 4.0"),
    "natural-questions": (natural_questions, "github.com/google-research-datasets/natural-questions", "CC BY-SA 3.0"),
    "grade-school-math": (school_math, "github.com/openai/grade-school-math", "MIT"),
    "GPTeacher": (instructions, "github.com/teknium1/GPTeacher", "MIT"),
    "self-instruct": (seeds, "github.com/yizhongw/self-instruct", "Apache-2.0"),
}


def topics(index):
    """Nouns of WordNet's `index.noun` that its texts use, as words."""
    for line in lines(index):
        word, *fields = line.split()
        if re.fullmatch(r"[a-z_]{3,}", word) and int(fields[-int(fields[1]) - 1]) > 0:
            yield word.replace("_", " ")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, default=20000, help="prompts of one source")
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    found = {}
    for name, (read, _, _) in SOURCES.items():
        mine = list(dict.fromkeys(each for each in read(wanted.folder / name) if 8 <= len(each) <= 600))
        random.Random(wanted.seed).shuffle(mine)
        mine = mine[:wanted.most]
        kept = {each: name for each in mine if not prompts.held_out(each)}
        print(f"{name}: {len(mine)} prompts, {len(mine) - len(kept)} too near to a held-out question")
        found |= kept
    order = list(found)
    random.Random(wanted.seed).shuffle(order)
    wanted.out.mkdir(parents=True, exist_ok=True)
    (wanted.out / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in order))
    nouns = list(topics(wanted.folder / "wordnet/index.noun"))
    (wanted.out / "topics.txt").write_text("\n".join(nouns) + "\n")
    print(len(order), "prompts,", len(nouns), "topics")


if __name__ == "__main__":
    main()
