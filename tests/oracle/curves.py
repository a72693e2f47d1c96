"""Compares losses and gradient norms of runs with those that a Python peer once computed, and records them."""
import json
import subprocess

import support

STEPS, BATCH, SEQ_LEN, HOLDOUT, SEED, LR = 20, 8, 32, 0.05, 7, 1e-3


def has_module(name):
    """Returns whether the Python of the peers has a module."""
    python = support.find_peers_python()
    command = [python, "-c", f"import importlib.util as u; exit(u.find_spec('{name}') is None)"]
    return python.exists() and subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def run_peer(strategy, ranks, dtype, arguments, text, out):
    """Trains with bench/peers/train.py; returns losses and norms. arguments: the value of --schedule, then others."""
    result = subprocess.run(
        [support.find_peers_python(), support.REPOSITORY / "bench/peers/train.py", "--strategy", strategy, "--schedule",
         *arguments, "--ranks", str(ranks), "--data", text, "--out", out, "--dtype", dtype, "--steps", str(STEPS),
         "--seq-len", str(SEQ_LEN), "--global-batch", str(BATCH), "--holdout", str(HOLDOUT), "--seed", str(SEED),
         "--lr", str(LR)], timeout=support.HANG, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{strategy} {' '.join(arguments)} ended with {result.returncode}:\n{result.stdout}")
    lines = support.read_lines(out)
    return {key: [line[key] for line in lines] for key in ("loss", "grad_norm")}


def keys_of_run(backend, dtype):
    """Returns the keys of the run of `tiny` that the peers train as well."""
    return {"parallel_backend": backend, "seed": SEED, "model__preset": "tiny", "data__seq_len": SEQ_LEN,
            "data__holdout": HOLDOUT, "train__steps": STEPS, "train__global_batch": BATCH, "train__lr": LR,
            "precision__param": dtype}


def check(test, case, run, theirs, bounds):
    """Compares a run folder with the losses and norms of a peer. bounds: (loss, norm) of the relative differences."""
    ours = support.read_lines(run / "metrics.jsonl")
    test.assertEqual([m["step"] for m in ours], list(range(1, STEPS + 1)))
    for key, bound in zip(("loss", "grad_norm"), bounds):
        worst = max(abs(a[key] - b) / b for a, b in zip(ours, theirs[key], strict=True))
        print(f"{case}: {key} {worst:.2g} (bound {bound:g})", flush=True)
        test.assertLess(worst, bound, f"{case}: {key}")


def check_recorded(test, path, cases, backend, bounds, **keys_of_all):
    """Trains every case and compares it with its recorded curve. cases: name -> (ranks, dtype, arguments of the peer,
    options of the backend, other keys of the run); bounds: dtype -> bounds of check()."""
    recorded = json.loads(path.read_text(encoding="utf-8"))["cases"]
    for case, (ranks, dtype, _, options, keys) in cases.items():
        with test.subTest(case):
            options = {f"{backend}__{key}": value for key, value in options.items()}
            run = test.train(ranks, **keys_of_run(backend, dtype), **keys_of_all, **keys, **options)
            check(test, case, run, recorded[case], bounds[dtype])


def record(test_class, path, about, cases):
    """Writes the curves of all cases to a file. cases: name -> function of (text, output file) that trains."""
    test_class.setUpClass()
    try:
        curves = {name: run(test_class.text, test_class.folder / f"{number}.jsonl")
                  for number, (name, run) in enumerate(cases.items())}
    finally:
        test_class.doClassCleanups()
    path.write_text(json.dumps({"about": about, "cases": curves}, indent=1) + "\n", encoding="utf-8")
