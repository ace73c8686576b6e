"""A model's file is cut or overwritten at random moments while a command loads or uses it. Whatever happens, the command ends by itself:
with its result, or with one line of error that names a file. cut_model.py PROGRAM MODEL FOLDER N_RUNS"""
import os
import random
import re
import shutil
import subprocess
import sys
import time

program, model, folder, n_runs = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
size = os.path.getsize(model)
path = os.path.join(folder, "model.gguf")
text = os.path.join(folder, "text")
with open(text, "w") as file:
    file.write("Once upon a time there was a girl who counted stars. " * 60)

COMMANDS = {
    "run": ["run", "-m", path, "-p", "Once upon a time", "-n", "60", "--ignore-eos"],
    "bench": ["bench", "-m", path, "-p", "64", "-n", "16", "-r", "1"],
    "perplexity": ["perplexity", "-m", path, "-c", "128", "-f", text],
    "tokenize": ["tokenize", "-m", path, "--file", text],
    "quantize": ["quantize", path, os.path.join(folder, "out.gguf"), "q8_0"],
    "info": ["info", path],
}


def change(rng):
    """One change of the file, in place."""
    how = rng.choice(["cut", "cut", "empty", "overwrite", "copy"])
    if how == "cut":
        os.truncate(path, rng.randrange(1, size))
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "overwrite":
        with open(path, "r+b") as file:
            file.seek(rng.choice([24, rng.randrange(size)]))
            file.write(rng.randbytes(rng.choice([64, 1 << 16])))
    else:  # as cp does: cut, then written again
        with open(path, "wb") as file, open(model, "rb") as source:
            shutil.copyfileobj(source, file)
    return how


def start(arguments):
    return subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            env=dict(os.environ, QN_DEVICE="cpu"))


def duration(arguments):
    shutil.copy(model, path)
    begin = time.monotonic()
    process = start(arguments)
    _, errors = process.communicate(timeout=300)
    if process.returncode:
        sys.exit(f"{arguments}: {errors.decode()}")
    return time.monotonic() - begin


def check(name, how, process, errors):
    lines = [line for line in errors.splitlines() if line.startswith("quern: ") and not line.startswith("quern: note: ")]
    where = f"{name}, {how}: status {process.returncode}: {errors[-500:]}"
    if process.returncode not in (0, 1):
        return where
    if process.returncode == 1 and (len(lines) != 1 or not re.match(r"quern: [^:]*(model|out)\.gguf", lines[0])):
        return where
    return None


rng = random.Random(int(os.environ.get("QN_SEED", "1")))
times = {name: duration(arguments) for name, arguments in COMMANDS.items()}
faults, n_refused = [], 0
for i in range(n_runs):
    name = list(COMMANDS)[i % len(COMMANDS)]
    shutil.copy(model, path)
    process = start(COMMANDS[name])
    time.sleep(rng.uniform(0, times[name]))
    how = change(rng)
    _, errors = process.communicate(timeout=300)
    n_refused += process.returncode == 1
    fault = check(name, how, process, errors.decode(errors="replace"))
    if fault:
        faults.append(fault)
        print(fault)
print(f"{n_runs} runs, {n_refused} ended with an error, {len(faults)} in another way")
sys.exit(1 if faults else 0)
