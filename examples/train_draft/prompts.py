"""Prompts to let the target write training text, and the questions that are held out of it."""

import random

HELD_OUT = (
    "How do I remove a red wine stain from a carpet?",
    "Why do leaves change colour in autumn?",
    "Write a haiku about a quiet train station.",
    "What should I see in Lisbon in two days?",
    "Explain the difference between a virus and a bacterium.",
    "Write a Python function that checks whether a string is a palindrome.",
    "My neighbour plays loud music at night. What can I do?",
    "How does a refrigerator keep food cold?",
    "Summarise the plot of Romeo and Juliet in five sentences.",
    "What is the best way to learn to swim as an adult?",
    "Give me three ideas for a birthday present for my grandmother.",
    "Who was Ada Lovelace and why is she remembered?",
    "A shop sells pens at 3 for 2 dollars. How much do 12 pens cost?",
    "Translate 'Where is the nearest pharmacy?' into Spanish.",
    "Write a polite email asking my landlord to repair the heating.",
    "What are the pros and cons of living in a small town?",
    "How can I make my sourdough bread less dense?",
    "Tell me a story about a fox who is afraid of the dark.",
    "What causes tides in the ocean?",
    "List the steps to change a flat bicycle tyre.",
)

# the questions above are about none of these
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


def templated(count, seed):
    """`count` distinct prompts: every one a template with a topic."""
    pairs = [template.format(topic) for template in parts(TEMPLATES) for topic in parts(TOPICS)]
    return random.Random(seed).sample(pairs, min(count, len(pairs)))
