"""How people ask for a story: requests made from what a story is about, and new ideas for stories to be written.

SPDX-License-Identifier: Apache-2.0
"""
from stories import Story

HERO = ["Tell me a story about {hero}.", "Write a story about {hero}.", "A story about {hero}, please.",
        "Can you tell me a story about {hero}?", "I want to hear a story about {hero}.", "Please write a short story about {hero}.",
        "Once upon a time there was {hero}. What happened then?", "Tell me about {hero}.", "Write a bedtime story about {hero}.",
        "{hero}"]
THING = ["Tell me a story with {a} in it.", "Write a story about {a}.", "Can you tell me a story about {a}?",
         "A story about {a}, please.", "I would like a story with {a}.", "Write a short story for children about {a}.", "{a}"]
HERO_THING = ["Tell me a story about {hero} and {a}.", "Write a story about {hero} who finds {a}.",
              "Write a short story in which {hero} finds {a}.", "Can you tell me a story about {hero} with {a}?",
              "A story about {hero} and {a}, please.", "Write a story about {hero} and {a}.", "{hero} and {a}",
              "Tell me a story about {hero} and {a}, please."]
TWO_THINGS = ["Tell me a story with {a} and {b}.", "Write a story about {a} and {b}.",
              "Write a short story with {a} and {b} in it.", "Can you tell me a story with {a} and {b}?", "{a} and {b}"]
ANY = ["Tell me a story.", "Tell me a story, please.", "Write a story.", "Can you tell me a story?", "I want to hear a story.",
       "Please tell me a bedtime story.", "Write a short story for children.", "A story, please.", "Once upon a time", "Another one!",
       "Tell me another story.", "Tell me a short story."]
# Spoken to, the model must say something, though stories are all it knows. Question: what is asked, answers: what may be said.
TALK = [
    (["Hello!", "Hello", "Hi", "Hi!", "Hey", "Hi there!", "Good morning!", "Hello there"],
     ["Hello! I can tell you a story. What should it be about?", "Hi! Would you like to hear a story?",
      "Hello! Shall I tell you a story? Name an animal or a thing, and I will begin."]),
    (["Who are you?", "What are you?", "What is your name?", "Are you a robot?", "Who made you?"],
     ["I am a very small model that tells short stories. Ask me for one!",
      "I am the demo model of quern. I only know how to tell short stories."]),
    (["What can you do?", "What do you know?", "Can you help me?", "Help"],
     ["I can tell you a short story. Tell me what it should be about.", "I tell short stories. Ask me for a story about a fox!"]),
    (["How are you?", "How are you today?", "How do you feel?"],
     ["I am fine, thank you! Would you like to hear a story?", "I am happy. Shall I tell you a story?"]),
    (["Thank you!", "Thanks", "Thank you", "That was nice!", "I liked that story.", "Good story!"],
     ["You are welcome! Would you like another story?", "I am glad that you liked it. Shall I tell you another one?"]),
    (["Bye", "Goodbye!", "Good night!", "Good night", "See you"],
     ["Goodbye! Come back for another story.", "Good night! Sleep well."]),
    (["What is two plus two?", "What is the capital of France?", "Write some code.", "Who is the president?", "Explain physics.",
      "What time is it?", "Solve this problem.", "Translate this.", "How does a computer work?"],
     ["I do not know that. I only tell short stories. Would you like one?", "That is too hard for me. I can tell you a story."]),
]

ANIMALS = """fox rabbit bear mouse owl duck frog cat dog horse pony cow pig sheep goat lamb hen squirrel hedgehog turtle fish whale
dolphin crab octopus starfish snail bee butterfly ladybug ant spider worm bird crow parrot penguin swan goose eagle elephant lion tiger
monkey giraffe zebra hippo kangaroo koala panda wolf deer moose badger beaver otter mole bat snake lizard crocodile camel donkey seal
dragon unicorn dinosaur puppy kitten bunny chick caterpillar dragonfly raccoon llama robin sparrow""".split()
PEOPLE = """girl boy farmer baker fisherman sailor pirate king queen prince princess wizard fairy giant knight painter gardener teacher
doctor clown astronaut robot snowman grandmother grandfather shepherd carpenter tailor""".split()
OBJECTS = """truck train boat car kite balloon doll teddy-bear star cloud tree flower leaf pumpkin teapot cup lamp clock shoe hat
button pencil book drum bell umbrella tractor airplane rocket""".replace("-", " ").split()
QUALITIES = """little brave kind shy clever lazy curious happy sad lonely hungry sleepy grumpy funny gentle proud greedy careful
friendly old young tiny big silly quiet noisy busy polite jealous patient""".split()
THINGS = """lantern key ladder bridge map rope box basket blanket pillow mirror ring necklace crown coin treasure cookie cake pie soup
apple pear carrot strawberry egg honey-pot cheese boat kite ball balloon drum flute guitar bell whistle book letter picture candle lamp
clock scarf hat coat boot glove umbrella bucket spoon pot teapot hammer nail wheel bicycle wagon sled swing tent nest cave river lake
pond well tower castle garden rainbow snowflake storm cloud star feather shell stone stick leaf seed flower rose sunflower mushroom
pumpkin bag button needle thread ribbon mitten puzzle robot train truck rocket ticket present birthday-party secret-door magic-wand
magic-stone lost-toy broken-cup snowman window door fence gate""".split()


def article(noun):
    return ("an " if noun[0] in "aeiou" and noun != "unicorn" else "a ") + noun


def capital(text):
    return text[0].upper() + text[1:]


def request(story, rng, generic=0.1):
    """What someone might have said to be told this story; about nothing in particular with this probability, or when the story
    has neither hero nor things."""
    hero = story.hero and story.hero + (rng.choice([" named ", " called "]) + story.name if story.name and rng.random() < 0.6 else "")
    things = list(story.things)
    rng.shuffle(things)
    kinds = ([HERO] if hero else []) + ([THING] if things else []) + ([HERO_THING] * 3 if hero and things else [])
    if len(things) > 1:
        kinds.append(TWO_THINGS)
    if not kinds or rng.random() < generic:
        return rng.choice(ANY)
    text = rng.choice(rng.choice(kinds)).format(hero=hero, a=things[0] if things else "", b=things[1] if len(things) > 1 else "")
    return capital(text)


def keep_mentioned(story, text):
    """Drops from a story that is to be written what the request for it does not say."""
    lower = text.lower()
    story.hero = story.hero if story.hero and story.hero in lower else ""
    story.name = story.name if story.name and story.name in text else ""
    story.things = [t for t in story.things if t in lower]


def as_typed(text, rng):
    """A request as people type it, now and then without capitals and full stop."""
    return text.rstrip(".!?").lower() if rng.random() < 0.2 else text


class Ideas:
    """Draws what new stories are about: from the lists here, and from the heroes and things of the stories there are."""

    def __init__(self, stories, rng):
        self.rng = rng
        self.heroes = [s.hero for s in stories if s.hero and len(s.hero.split()) > 1 and s.hero.split()[-1] not in QUALITIES]
        self.things = [t for s in stories for t in s.things]
        self.names = sorted({s.name for s in stories if s.name})

    def thing(self):
        if self.things and self.rng.random() < 0.4:
            return self.rng.choice(self.things)
        return article(self.rng.choice(THINGS).replace("-", " "))

    def hero(self):
        if self.heroes and self.rng.random() < 0.3:
            return self.rng.choice(self.heroes)
        noun = self.rng.choice(self.rng.choice([ANIMALS, ANIMALS, PEOPLE, OBJECTS]))
        return article(f"{self.rng.choice(QUALITIES)} {noun}" if self.rng.random() < 0.7 else noun)

    def draw(self):
        """A story yet without text: all of hero, name and things that are to occur in it."""
        rng, idea = self.rng, Story("")
        if rng.random() < 0.85:
            idea.hero = self.hero()
            if self.names and rng.random() < 0.4:
                idea.name = rng.choice(self.names)
        n_things = rng.choice([0, 1, 1, 2]) if idea.hero else rng.choice([1, 2])
        while len(idea.things) < n_things:
            thing = self.thing()
            if thing.split()[-1] not in idea.hero and thing not in idea.things:
                idea.things.append(thing)
        return idea
