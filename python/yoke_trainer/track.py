"""Copies the metrics of a run into other trackers. Nothing is sent anywhere.

    python -m yoke_trainer.track RUN --wandb DIR      an offline run of Weights & Biases, for `wandb sync`
    python -m yoke_trainer.track RUN --mlflow DIR     a run in a file store of MLflow

The command may be repeated while the run continues, and afterwards: what is already there is not written twice. W&B
cannot extend an offline run, so that of an earlier call is replaced. MLflow can, so only missing values are added. If
values or settings have changed, because the run was trained again, the older copy is moved to MLflow's trash.
"""

import argparse
import hashlib
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from .run import Row, Run

_MLFLOW_BATCH = 1000  # MLflow refuses more metrics in one call
_MLFLOW_PARAMS = 100
_MLFLOW_TEXT = 6000  # most characters of a parameter
_TAG = "yoke.run"


def to_wandb(run: Run, folder: Path, project: str) -> Path:
    """Writes an offline run of W&B into folder/wandb and returns its folder.

    Raises ModuleNotFoundError if the package wandb is not installed.
    """
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # else wandb may send reports about errors
    import wandb

    steps = sorted(_values(run).items())
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob(f"wandb/offline-run-*-{_identity(run)}"):
        shutil.rmtree(earlier)
    # The machine that copies a run need not be the one that trained.
    settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True,
                              x_disable_meta=True)
    copy = wandb.init(mode="offline", dir=str(folder), project=project, id=_identity(run), name=run.path.name,
                      config=run.config, settings=settings)
    for step, values in steps:
        copy.log(values, step=step)
    copy.finish(exit_code=run.ending["code"] if run.ending else 0)
    return Path(copy.dir).parent


def to_mlflow(run: Run, folder: Path, project: str) -> str:
    """Writes a run of MLflow into a file store and returns its ID. `project` is the name of the experiment.

    Raises ModuleNotFoundError if neither of the packages mlflow and mlflow-skinny is installed.
    """
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # MLflow 3 refuses to open file stores without it
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    params = {name: str(value)[:_MLFLOW_TEXT] for name, value in _flat("", run.config)}
    values = {(_mlflow_name(name), step): value
              for step, row in _values(run).items() for name, value in row.items()}
    started = int(datetime.fromisoformat(run.environment["time"]).timestamp() * 1000)

    folder.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=folder.resolve().as_uri())
    experiment = client.get_experiment_by_name(project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(project)
    copy, present = _mlflow_copy(client, experiment_id, run, params, values)
    if copy is None:
        copy = client.create_run(experiment_id, start_time=started, run_name=run.path.name,
                                 tags={_TAG: _identity(run)}).info.run_id
    # metrics.jsonl contains no times, so all values have the time at which the run started.
    missing = [Metric(name, value, started, step) for (name, step), value in values.items()
               if (name, step) not in present]
    for begin in range(0, len(missing), _MLFLOW_BATCH):
        client.log_batch(copy, metrics=missing[begin : begin + _MLFLOW_BATCH])
    logged = client.get_run(copy).data.params
    new = [Param(name, value) for name, value in params.items() if name not in logged]
    for begin in range(0, len(new), _MLFLOW_PARAMS):
        client.log_batch(copy, params=new[begin : begin + _MLFLOW_PARAMS])
    if run.ending:
        client.set_terminated(copy, "FINISHED" if run.ending["code"] == 0 else "FAILED")
    return str(copy)


def _mlflow_copy(client: Any, experiment_id: str, run: Run, params: dict[str, str],
                 values: dict[tuple[str, int], float]) -> tuple[str | None, set[tuple[str, int]]]:
    """Returns the copy that an earlier call has made, with the values in it, or None.

    A copy that contains anything else than the run does now is moved to MLflow's trash.
    """
    for found in client.search_runs([experiment_id], f"tags.`{_TAG}` = '{_identity(run)}'", max_results=1):
        copy: str = found.info.run_id
        present = {(name, metric.step): metric.value
                   for name in found.data.metrics for metric in client.get_metric_history(copy, name)}
        same_params = all(params.get(name) == value for name, value in found.data.params.items())
        if same_params and all(_same(value, values.get(key)) for key, value in present.items()):
            return copy, set(present)
        client.delete_run(copy)
    return None, set()


def _same(a: float, b: float | None) -> bool:
    return b is not None and (a == b or (math.isnan(a) and math.isnan(b)))


def _mlflow_name(name: str) -> str:
    """Returns a name without the characters that MLflow refuses, such as the + of comm.dp_replicate+dp_shard.bytes."""
    return re.sub(r"[^\w.\-/ :]", "_", name)


def _identity(run: Run) -> str:
    """Returns what both trackers know the run by: it depends on the path of the folder alone."""
    return hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()[:16]


def _values(run: Run) -> dict[int, Row]:
    """Returns the metrics and the evaluation of each step."""
    values: dict[int, Row] = {}
    for row in run.rows():
        step = int(row.pop("step"))
        values.setdefault(step, {}).update(row)
    return values


def _flat(prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield prefix + name, value


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m yoke_trainer.track", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="folder of a run, such as runs/novels")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--wandb", type=Path, metavar="DIR", help="folder in which W&B writes its folder wandb")
    target.add_argument("--mlflow", type=Path, metavar="DIR", help="folder of the file store, such as mlruns")
    parser.add_argument("--project", default="yoke", help="project of W&B or experiment of MLflow; default yoke")
    options = parser.parse_args()
    try:
        run = Run(options.run)
        if options.wandb:
            print(f"wandb sync {to_wandb(run, options.wandb, options.project)}")
        else:
            print(f"run {to_mlflow(run, options.mlflow, options.project)} in {options.mlflow}")
    except ModuleNotFoundError as error:
        option, package = ("--wandb", "wandb") if options.wandb else ("--mlflow", "mlflow-skinny")
        _fail(2, f"{option} needs a package that is not installed ({error.name}): pip install {package}")
    except FileNotFoundError as error:
        _fail(2, str(error))
    except (OSError, ValueError) as error:
        _fail(1, str(error))
    except Exception as error:  # the trackers have classes of their own, which need not be importable here
        if not type(error).__module__.startswith(("mlflow.", "wandb.")):
            raise
        _fail(1, str(error))


def _fail(code: int, message: str) -> NoReturn:
    print(f"yoke_trainer.track: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
