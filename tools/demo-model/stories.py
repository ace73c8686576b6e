"""The stories of the given file, as documents: split, written with capitals, and what each is about.

The file of stories is lower case throughout. Capitals are put back by rule: sentences, speech, "I", and names, which are the words
that stories introduce as such ("a girl named lily") or that speech is ascribed to. What a story is about is found by rule, too: its
hero from the phrase that introduces it, its things from articles before rare nouns. Requests are made from these (requests.py).

SPDX-License-Identifier: Apache-2.0
"""
import collections
import re
from dataclasses import dataclass, field

BETWEEN = re.compile(r"(?<!\n)\n(?!\n)")
INTRODUCED = re.compile(r"\b(?:named|called|name was|name is) ([a-z]{2,10})\b")
SAID = re.compile(r'["\'] (?:said|asked|replied|shouted|whispered|cried) ([a-z]{3,10})\b|\b([a-z]{3,10}) (?:said|asked|replied), "')
SENTENCE = re.compile(r'(^["\']?|[.!?]["\']?\s+["\']?|\n+["\']?|(?:[,:]\s)"|(?<=\s)")([a-z])')
HERO = re.compile(r"\b(?:there was|there lived|there once was) (an? (?:[a-z]+ ){0,2}?[a-z]+)"
                  r"(?= who| that| named| called| and|[.,]| in | on )(?: (?:named|called) ([a-z]+))?")
THING = re.compile(r"\b(an?) ((?:(?:big|little|small|red|blue|green|yellow|old|new|shiny|tall|tiny|long) )?([a-z]{3,12}))"
                   r"(?=[.,!?]| and | in | on | with | to | that | who | at | from | for | under )")
# Words that stand where names do, or where things do, and are neither.
NO_NAMES = set("""he she it they the and then but mom mommy mum dad daddy mama papa grandma grandpa teacher mother father man woman
boy girl dog cat bird bear fox you her him his them who friend one day lady bunny rabbit everyone owner doctor voice frog fish owl
squirrel lion mouse duck sister brother kids children people just also had has was were this that mrs wizard fairy king queen star sun
moon tree wind princess prince farmer monkey elephant turtle snake wolf puppy kitten ant bee spider giant dragon policeman clown when
what there here very may bun officer eagerly happily slowly little big old nice happy sad angry not for with out again back finally quickly""".split())
NO_THINGS = set("""lot day bit time way while moment minute long few little one new big name hug kiss smile look good great while more
day friend bit couple sudden hurry second year week night morning little many best next part end question kind""".split())


@dataclass
class Story:
    text: str
    hero: str = ""
    name: str = ""
    things: list = field(default_factory=list)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        raw = [s.strip() for s in BETWEEN.split(f.read())]
    raw = [re.sub(r"[ \t]+", " ", s).replace(" \n", "\n").replace("\n ", "\n") for s in raw if len(s) > 200]
    raw = [s for s in raw if s.isascii() and s[-1] in '.!?"']
    names = find_names(raw)
    frequency = collections.Counter(w for s in raw for w in set(re.findall(r"[a-z]+", s)))
    return [about(Story(with_capitals(s, names)), frequency) for s in raw]


def find_names(texts):
    found = collections.Counter()
    for s in texts:
        found.update(set(INTRODUCED.findall(s)) - NO_NAMES)
        found.update({a or b for a, b in SAID.findall(s)} - NO_NAMES)
    # A word that often follows an article or possessive is a kind of hero, not a name.
    nouns = collections.Counter(w for s in texts for w in re.findall(r"\b(?:a|an|the|his|her|my|your|little|big|some) ([a-z]+)", s))
    return {w for w, n in found.items() if n >= 2 and nouns[w] <= n // 2}


def with_capitals(text, names):
    text = re.sub(r"\bi\b(?!\.[a-z])", "I", text)
    text = SENTENCE.sub(lambda m: m[1] + m[2].upper(), text)
    return re.sub(r"\b[a-z]+\b", lambda m: m[0].capitalize() if m[0] in names else m[0], text)


def about(story, frequency):
    """Fills in hero, name and things: articles with their nouns, the rarest first."""
    lower = story.text.lower()
    if m := HERO.search(lower[:300]):
        story.hero, story.name = m[1], (m[2] or "").capitalize()
    nouns = {}
    for article, phrase, noun in THING.findall(lower):
        if noun not in NO_THINGS and noun not in story.hero and 4 <= frequency[noun] <= 900 and noun[-2:] not in ("ly", "ed"):
            nouns.setdefault(noun, f"{article} {phrase}")
    story.things = [nouns[n] for n in sorted(nouns, key=lambda n: frequency[n])][:4]
    return story
