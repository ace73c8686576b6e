"""Tasks of lm-evaluation-harness through quern serve (`local-completions`) and through Hugging Face transformers in float32 (`hf`), on the
same weights: log-likelihoods row by row, and the tasks' figures with their standard errors.

    QN_BIN=build python3 tests/server/serve_lm_eval.py MODEL.gguf FOLDER [--float32] [--serve FILE] [--rows 200] [--text FILE...] [-- OPTIONS of serve]

transformers reads MODEL.gguf and decodes its weights to float32; quern serves the same file, or FILE; with --float32 then also a copy of
MODEL with float32 weights and a float32 KV cache, as transformers computes: there, log-likelihoods of whole texts have the bound of
answers. Rows are made here and written to FOLDER, as are the descriptions of the three tasks (`lm_eval --include_path FOLDER/tasks --tasks
quern_choices` runs one alone), the model's tokeniser, and the results:

  quern_choices   multiple choice: facts, opposites, sums, and what comes next, each with four choices
  quern_texts     rolling log-likelihood: paragraphs of this project's documentation, or of --text
  quern_answers   generation: the questions of quern_choices after three examples, greedily, up to the end of the line

Exit status 1: a bound is exceeded. 77: a package is missing. Needs lm-eval[api], transformers, torch, accelerate, gguf; --float32 numpy and
as much disk as the copy takes. Nothing is downloaded. SmolLM2 with 200 rows takes six minutes of processor time, with --float32 ten.
"""
import argparse
import json
import math
import os
import pathlib
import random
import re
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
try:
    import lm_eval
    import torch
    import transformers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from serve_process import Server

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools"))
CONTEXT = 2048
CLOSE = 1e-2  # of two log-likelihoods
CLOSE_TOKEN = 1e-3  # of a text's, for each of its tokens: a cache in fp16 alone moves the sum of 100 tokens by 1e-2
CLOSE_SHARE = 0.99
SAME_ANSWERS = 0.95  # the most likely of two tokens of nearly the same probability may differ

CAPITALS = """Argentina Buenos_Aires, Australia Canberra, Austria Vienna, Belgium Brussels, Brazil Brasília, Bulgaria Sofia, Canada Ottawa,
Chile Santiago, China Beijing, Colombia Bogotá, Croatia Zagreb, Cuba Havana, Denmark Copenhagen, Egypt Cairo, England London, Estonia Tallinn,
Ethiopia Addis_Ababa, Finland Helsinki, France Paris, Germany Berlin, Ghana Accra, Greece Athens, Hungary Budapest, Iceland Reykjavik,
India New_Delhi, Indonesia Jakarta, Iran Tehran, Iraq Baghdad, Ireland Dublin, Israel Jerusalem, Italy Rome, Jamaica Kingston, Japan Tokyo,
Kenya Nairobi, Latvia Riga, Lebanon Beirut, Lithuania Vilnius, Malaysia Kuala_Lumpur, Mexico Mexico_City, Mongolia Ulaanbaatar, Morocco Rabat,
Nepal Kathmandu, New_Zealand Wellington, Nigeria Abuja, Norway Oslo, Pakistan Islamabad, Peru Lima, Poland Warsaw, Portugal Lisbon,
Romania Bucharest, Russia Moscow, Scotland Edinburgh, Serbia Belgrade, Slovakia Bratislava, South_Korea Seoul, Spain Madrid, Sweden Stockholm,
Syria Damascus, Thailand Bangkok, Tunisia Tunis, Turkey Ankara, Ukraine Kyiv, Uruguay Montevideo, Venezuela Caracas, Vietnam Hanoi, Wales Cardiff"""
OPPOSITES = """hot cold, big small, up down, left right, day night, black white, early late, fast slow, hard soft, high low, light dark, long short,
old young, open closed, rich poor, strong weak, wet dry, full empty, good bad, happy sad, loud quiet, near far, thick thin, true false, clean dirty,
inside outside, above below, begin end, buy sell, push pull, love hate, win lose, first last, heavy light, wide narrow, sweet sour, cheap expensive,
deep shallow, easy difficult, brave afraid, north south, east west, give take, ask answer, arrive leave, accept refuse, always never, before after,
more less, many few, noisy silent, public private, rough smooth, sharp dull, summer winter, tall short, war peace, wild tame, wise foolish, alive dead"""
SEQUENCES = ["Monday Tuesday Wednesday Thursday Friday Saturday Sunday", "January February March April May June July August September October November December",
             "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty",
             "first second third fourth fifth sixth seventh eighth ninth tenth", "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"]


# ---- Rows ----


def pairs_of(text):
    return [tuple(word.replace("_", " ") for word in pair.split()) for pair in text.replace("\n", " ").split(", ")]


def question(text, answer, others, rng):
    """A row: `answer` among three of `others`, in any order."""
    choices = rng.sample(sorted(set(others) - {answer}), 3) + [answer]
    rng.shuffle(choices)
    return {"question": text, "choices": choices, "answer": choices.index(answer), "target": answer}


def make_questions(n_rows, rng):
    capitals, opposites = pairs_of(CAPITALS), pairs_of(OPPOSITES)
    rows = [question(f"What is the capital of {country}?", city, [c for _, c in capitals], rng) for country, city in capitals]
    rows += [question(f"What is the opposite of {word}?", other, [o for _, o in opposites], rng) for word, other in opposites]
    for words in map(str.split, SEQUENCES):
        rows += [question(f"What comes after {word}?", following, words, rng) for word, following in zip(words, words[1:])]
    sums = rng.sample([(a, b) for a in range(2, 40) for b in range(2, 40)], 120)
    rows += [question(f"What is {a} plus {b}?", str(a + b), [str(a + b + d) for d in range(-9, 10)], rng) for a, b in sums]
    rng.shuffle(rows)
    return rows[:n_rows]


def paragraphs_of(path):
    """Paragraphs of prose, without code, tables and headings, their lines joined."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8", errors="ignore"), flags=re.M | re.S)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text) if not re.match(r"\s*[|#<*-]", block)]
    return [block for block in blocks if 150 <= len(block) <= 1500]


def make_texts(paths, n_rows, rng):
    texts = [text for path in paths for text in paragraphs_of(path)]
    return [{"text": text} for text in rng.sample(texts, min(n_rows, len(texts)))]


def write_task(folder, name, rows, **config):
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test", **config}
    (folder / "tasks" / f"{name}.yaml").write_text(json.dumps(task, indent=1), encoding="utf-8")  # JSON is YAML
    print(f"{name}: {len(rows)} rows")


def metric(name, higher_is_better=True, aggregation="mean", **options):
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher_is_better, **options}


def make_tasks(folder, n_rows, texts):
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    questions = make_questions(n_rows + 3, rng)
    examples = "".join(f"Question: {row['question']}\nAnswer: {row['target']}\n\n" for row in questions[:3])
    questions = questions[3:]
    prompt = "Question: {{question}}\nAnswer:"
    write_task(folder, "quern_choices", questions, output_type="multiple_choice", doc_to_text=prompt, doc_to_choice="choices",
               doc_to_target="answer", metric_list=[metric("acc"), metric("acc_norm")])
    write_task(folder, "quern_texts", make_texts(texts, n_rows, rng), output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="text",
               metric_list=[metric("word_perplexity", False, "weighted_perplexity"), metric("byte_perplexity", False, "weighted_perplexity"),
                            metric("bits_per_byte", False, "bits_per_byte")])
    write_task(folder, "quern_answers", [{**row, "examples": examples} for row in questions], output_type="generate_until",
               doc_to_text="{{examples}}" + prompt, doc_to_target=" {{target}}",
               generation_kwargs={"until": ["\n"], "max_gen_toks": 24, "do_sample": False}, metric_list=[metric("exact_match", ignore_case=True)])
    return ["quern_choices", "quern_texts", "quern_answers"]


# ---- Evaluation ----


def evaluate(model, folder, tasks, name):
    results = lm_eval.simple_evaluate(model=model, tasks=tasks, task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False),
                                      log_samples=True, bootstrap_iters=1000)
    found = {"results": results["results"], "samples": {task: sorted(results["samples"][task], key=lambda s: s["doc_id"]) for task in tasks}}
    (folder / f"{name}.json").write_text(json.dumps(found, default=str), encoding="utf-8")
    return found


def through_transformers(path, folder, tasks):
    given = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**given)
    tokenizer.save_pretrained(folder / "tokenizer")
    model = transformers.AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32).eval()
    return evaluate(HFLM(pretrained=model, tokenizer=tokenizer, max_length=CONTEXT - 1, batch_size=4), folder, tasks, "transformers")


def through_quern(served, options, folder, tasks, name):
    with Server(str(served), "-c", str(CONTEXT), "--alias", "quern", *options) as server:
        model = LocalCompletionsAPI(model="quern", base_url=server.url + "/v1/completions", tokenizer_backend="huggingface",
                                    tokenizer=str(folder / "tokenizer"), num_concurrent=8, max_length=CONTEXT)
        return evaluate(model, folder, tasks, name)


# ---- Comparison ----


def answers_of(sample):
    """Log-likelihoods of a row, a list; or its generated text."""
    answers = [response[0] if isinstance(response, (list, tuple)) else response for response in sample["resps"]]
    return answers[0] if isinstance(answers[0], str) else [float(a[0] if isinstance(a, (list, tuple)) else a) for a in answers]


def share_within(what, off, bound):
    """Whether enough of the differences are smaller than the bound."""
    off = sorted(off)
    close = sum(x < bound for x in off)
    print(f"  {what}: {close} of {len(off)} within {bound}; median {off[len(off) // 2]:.1e}, 99% {off[int(0.99 * (len(off) - 1))]:.1e}, largest {off[-1]:.1e}")
    return close >= CLOSE_SHARE * len(off)


def compare_rows(task, quern, reference, tokenizer, is_float):
    """Whether enough rows are alike: log-likelihoods of answers, those of texts for each of their tokens, if quern computed in float32 also as
    sums, and generated texts."""
    samples = list(zip(quern["samples"][task], reference["samples"][task], strict=True))
    pairs = [(answers_of(q), answers_of(r)) for q, r in samples]
    print(f"{task}: {len(pairs)} rows")
    if isinstance(pairs[0][0], str):
        same = sum(q == r for q, r in pairs)
        print(f"  the same text: {same} of {len(pairs)}")
        return same >= SAME_ANSWERS * len(pairs)
    off = [abs(a - b) for q, r in pairs for a, b in zip(q, r, strict=True)]
    fine = share_within("log-likelihoods", off, CLOSE)
    if task != "quern_texts":
        return fine
    fine |= not is_float
    sizes = [len(tokenizer(q["doc"]["text"], add_special_tokens=False).input_ids) for q, _ in samples]
    return fine & share_within(f"of each token, {sum(sizes) / len(sizes):.0f} in a row", [x / size for x, size in zip(off, sizes, strict=True)], CLOSE_TOKEN)


def bits_per_byte(samples):
    """As the task's, but with a standard error, which the harness has not: that of a ratio of sums over rows."""
    bits = [-answers_of(sample)[0] / math.log(2) for sample in samples]
    sizes = [len(sample["doc"]["text"].encode()) for sample in samples]
    ratio, n = sum(bits) / sum(sizes), len(bits)
    rest = sum((b - ratio * size) ** 2 for b, size in zip(bits, sizes))
    return ratio, math.sqrt(rest / (n * (n - 1))) / (sum(sizes) / n)


def figures_of(task, found):
    """{name: (value, standard error)}"""
    if task == "quern_texts":
        return {"bits_per_byte": bits_per_byte(found["samples"][task])}
    results = found["results"][task]
    return {key.split(",")[0]: (value, results[key.replace(",", "_stderr,")]) for key, value in results.items() if "," in key and "_stderr" not in key}


def compare_figures(task, quern, reference):
    """Whether the figures of a task differ by less than their standard errors."""
    found, fine = figures_of(task, quern), True
    for name, (value, error) in figures_of(task, reference).items():
        fine &= abs(found[name][0] - value) <= error
        print(f"  {name}: quern {found[name][0]:.6f}, transformers {value:.6f} ± {error:.6f}")
    return fine


def compare(quern, reference, tasks, tokenizer, is_float):
    fine = True
    for task in tasks:
        fine &= compare_rows(task, quern, reference, tokenizer, is_float)
        fine &= compare_figures(task, quern, reference)
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--float32", action="store_true", help="then also float32 weights and a float32 KV cache")
    parser.add_argument("--serve", type=pathlib.Path, help="what quern serves (default: MODEL)")
    parser.add_argument("--rows", type=int, default=200, help="of each task")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=sorted(SOURCE.glob("docs/**/*.md")))
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    a, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    folder = a.folder.resolve()
    tasks = make_tasks(folder, a.rows, a.text)
    reference = through_transformers(a.model.resolve(), folder, tasks)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    served = (a.serve or a.model).resolve()
    fine = compare(through_quern(served, options, folder, tasks, "quern"), reference, tasks, tokenizer, False)
    if a.float32:
        from compare_perplexity import float32_copy

        print("\nIn float32:")
        copy = float32_copy(a.model.resolve(), folder, 0)
        quern = through_quern(copy, [*options, "--kv", "f32"], folder, tasks, "quern-float32")
        fine &= compare(quern, reference, tasks, tokenizer, True)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
