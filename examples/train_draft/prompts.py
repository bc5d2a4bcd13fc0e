"""Prompts to let the target write training text, and the questions that are held out of it."""

import random
import re
from pathlib import Path

read = lambda name: tuple(Path(__file__).with_name(name).read_text().splitlines())
HELD_OUT = read("held_out.txt")
HELD_OUT_INVENTED = read("held_out_invented.txt")

COMMON = frozenset("""a about am an and are as at be by can could do does for from give has have how i in into is it its list me my of on or
should some such tell that the their there this to was were what when where which who why will with would write you your""".split())


def content(text):
    """The words of `text` that say what it is about."""
    return set(re.findall(r"[a-z0-9]+", text.lower())) - COMMON


HELD_OUT_CONTENT = tuple(content(each) for each in HELD_OUT + HELD_OUT_INVENTED)


def held_out(text):
    """Whether `text` shares over half of the content words with a question held out."""
    words = content(text)
    return any(len(words & each) > 0.5 * min(len(words), len(each)) and len(words & each) >= min(3, len(each))
               for each in HELD_OUT_CONTENT)


# the questions held out are about none of these
TOPICS = """black holes|volcanoes|honey bees|the Roman Empire|electric cars|chess openings|the human heart|coffee|glaciers
jazz music|photosynthesis|the stock market|dolphins|sleep|the printing press|quantum computers|rainforests|yoga|bridges
the Great Wall of China|earthquakes|poetry|machine learning|soccer|the solar system|vaccines|inflation|origami|dinosaurs
public speaking|renewable energy|the French Revolution|gardening|databases|mountain climbing|penguins|democracy|antibiotics
the Silk Road|opera|time management|coral reefs|cryptography|marathon running|the Renaissance|butterflies|robotics|salt
photography|the Moon landing|nutrition|cats|elephants|sharks|owls|wolves|horses|ants|spiders|whales|frogs|parrots
the periodic table|gravity|magnetism|lightning|rainbows|hurricanes|deserts|rivers|islands|caves|forests|the Arctic
sorting algorithms|recursion|operating systems|compilers|computer networks|web browsers|version control|linked lists
hash tables|binary search|regular expressions|unit testing|cloud computing|video games|social media|smartphones
probability|prime numbers|geometry|calculus|fractions|statistics|logic|infinity|graphs|matrices|algebra|percentages
Shakespeare's comedies|fairy tales|science fiction|mythology|detective novels|comics|theatre|film editing|animation|sculpture
ballet|guitar|piano|drums|singing|painting|watercolours|pottery|knitting|sewing|woodworking|calligraphy|museums|libraries
breakfast|soup|pasta|rice|chocolate|cheese|apples|tea|spices|salads|barbecue|ice cream|potatoes|olive oil|eggs
tennis|basketball|cycling|sailing|skiing|golf|boxing|rowing|surfing|hiking|camping|fishing|dancing|meditation|stretching
job interviews|budgeting|taxes|insurance|mortgages|saving money|starting a business|marketing|teamwork|leadership|negotiation
customer service|remote work|note taking|exam preparation|essay writing|learning a language|critical thinking|creativity
friendship|patience|courage|honesty|gratitude|loneliness|anger|kindness|curiosity|happiness|stress|confidence|memory|habits
ancient Egypt|the Vikings|the Cold War|the Industrial Revolution|samurai|pirates|castles|the Olympics|explorers|inventions
Tokyo|Paris|Cairo|Brazil|Canada|Kenya|India|Australia|Norway|Mexico|Italy|Antarctica|Peru|Iceland|Greece|Vietnam
clouds|snow|wind|oceans|stars|comets|satellites|telescopes|rockets|Mars|the Sun|radio|batteries|engines|lasers|airplanes
trains|ships|bicycles|elevators|clocks|mirrors|glass|steel|plastic|paper|recycling|water|air pollution|soil|seeds|mushrooms
roses|trees|teeth|bones|the brain|the immune system|blood|eyes|skin|allergies|diabetes|vitamins|exercise|first aid|headaches
wedding speeches|small talk|travel planning|moving house|parenting|puppies|school uniforms|homework|teachers|recess|board games
robots that paint|a lost umbrella|a talking teapot|a brave mouse|the last dragon|a lonely astronaut|two rival bakers
a secret garden|an old sailor|a clever crow|a haunted hotel|a magic pencil|a snowed-in village|a boy who could fly"""

# how people begin; the target goes on
OPENINGS = tuple("""How do I|How can I|How does|How do|How many|How much|How long does it take to|How should I|How would you|What is|What are
What is the best way to|What is the difference between|What can I do|What should I|What happens when|What would happen if|What causes
What do you think about|What are some|Why do|Why does|Why is|Why are|Why did|Who was|Who is|Who invented|When did|When should I
Where can I|Where is|Which|Can you|Could you explain|Can I|Is it|Is there|Are there|Do I need to|Should I|Does|Did
Write a|Write a short|Write a poem about|Write a story about|Write a letter|Write an email|Write an essay|Write a function that
Write a Python|Write a program|Write a script|Write a review|Write a song|Write a speech|Write a dialogue|Write a summary
Write code|Explain|Explain how|Explain why|Explain the|Describe|Describe a|Describe how|Give me|Give me a list|Give me some tips
Give an example|List|List five|List three|List the|Name|Name three|Tell me|Tell me a|Tell me about|Tell me how|Summarise|Summarize the
Compare|Translate|Translate the following|Correct|Rewrite|Rewrite this|Edit|Classify|Convert|Calculate|Solve|Find the|Create a
Create a plan|Plan a|Design a|Suggest|Suggest a|Recommend|Help me|Help me write|Make a|Make a list|Generate|Draft a|Define
Discuss|Imagine|Pretend|Act as|Teach me|Show me|I want to|I need|I need help with|I am|I am planning|I have|I have a|I don't understand
I feel|I would like|I just|I'm going to|I'm looking for|My|My friend|My boss|My dog|My son|My daughter|My car|My computer|We are|Our
If|If I|If a|A man|A train|A farmer|A store|A recipe|A good|The|In|In a|In which|For|Please|Please write|Is|Are|Would|Tips for
Ideas for|Steps to|Pros and cons of|Advantages of|History of|Meaning of|Recipe for|Facts about|Hello|Hi, I|Hey|Thanks|Okay""".replace("\n", "|").split("|"))

TEMPLATES = """What is interesting about {}?|Explain {} to a ten year old.|Write a short story about {}.|Write a poem about {}.
Give me five facts about {}.|What are common myths about {}?|How has {} changed over the last century?|Why does {} matter?
Write an introduction to an essay about {}.|List the advantages and disadvantages of {}.|What questions should I ask about {}?
Describe {} in one paragraph.|Tell me a joke about {}.|How would you teach {} in a classroom?|Summarise what is known about {}.
What should a beginner know about {}?|Write a dialogue between two friends who discuss {}.|Compare {} with something similar.
Make a plan for a week to learn about {}.|What are the key terms for {}? Define each.|Write a quiz of five questions about {}.
Write an email to a colleague about {}.|What could go wrong with {}?|Give step by step advice about {}.|Write a slogan for {}.
Imagine the future of {}. What does it look like?|What do experts disagree about when it comes to {}?|Write a blog post about {}.
How do people in different countries think about {}?|Write a Python program that has to do with {}.|Write a letter about {}.
Name three books or films about {} and say why they are good.|What is the history of {}?|How does {} work?
What is the connection between {} and everyday life?|Write a product description inspired by {}.|Explain {} with an analogy.
Rewrite this sentence to be more formal: "I really like {}."|Write a news article about {}.|Write a list of tips about {}.
What would happen if there were no more {}?|Correct the grammar: "He don't knows nothing about {}."|Is it hard to understand {}?
Classify this text as positive or negative: "I was disappointed by {}."|Give an example that shows {} at its best.
Translate into French: "I want to know more about {}."|Write a table of contents for a book about {}.|Debate: {}, good or bad?
What skills do I need for {}?|Which numbers describe {} well?|Write a speech of one minute about {}.|Who is known for {}?"""


def parts(text):
    return [part for line in text.split("\n") for part in line.split("|")]


def templated(count, seed, topics=()):
    """`count` distinct prompts: every one a template with a topic."""
    pick, templates = random.Random(seed), parts(TEMPLATES)
    if not topics:
        pairs = [template.format(topic) for template in templates for topic in parts(TOPICS)]
        return pick.sample(pairs, min(count, len(pairs)))
    made = {pick.choice(templates).format(pick.choice(topics)) for _ in range(count)}
    return sorted(each for each in made if not held_out(each))
