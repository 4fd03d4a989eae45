"""The job that a plan suggests, as a file for Slurm or Kubernetes: the files in cluster/, with the plan's numbers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxsens.core.sweeps.planning.plan import Plan

_FOLDER = Path(__file__).parent
TEMPLATES: Mapping[str, str] = {
    ".slurm": "slurm_array.sbatch",
    ".sbatch": "slurm_array.sbatch",
    ".yaml": "kubernetes_indexed_job.yaml",
}
"""The file that each ending stands for."""


def job_file(plan: Plan, ending: str, config: Path, options: Sequence[str] = ()) -> str:
    """Returns the text of a job that measures the sweep of a config in as many shards as the plan suggests.

    Args:
        plan: the plan.
        ending: one of `TEMPLATES`.
        config: the config that was planned.
        options: further ones of `jaxsens plan` that `jaxsens sweep` needs too, such as --only.
    """
    target, text = plan.target, (_FOLDER / TEMPLATES[ending]).read_text("utf-8")
    gpu, count = target.device.platform == "gpu", target.count
    name = config.stem
    # What the job is for stands in the first comment: a limit of time and a number of shards hold for nothing else.
    points = sum(len(row.expected.points) for row in plan.rows)
    command = shlex.join(["jaxsens", "plan", str(config), "--on", target.name, *options])
    made_for = f"# For {points} points on {count} x {target.device.description}, by `{command}`.\n#\n"
    begin = text.index("# A sweep as")
    text = text[:begin] + made_for + text[begin:]
    if TEMPLATES[ending].endswith(".sbatch"):
        hours, minutes = divmod(plan.minutes, 60)
        text = _line(text, "#SBATCH --array=", f"0-{plan.shards - 1}")
        text = _line(text, "#SBATCH --time=", f"{hours:02}:{minutes:02}:00")
        if gpu:
            text = text.replace(
                "#SBATCH --cpus-per-task", f"#SBATCH --gpus-per-task={count}\n#SBATCH --cpus-per-task"
            )
        if options:
            text = text.replace('"${@:3}"', f'{shlex.join(options)} "${{@:3}}"')
        text = re.sub(r"config=\$\{1:\?.*\}", f"config=${{1:-{config}}}", text)
        return re.sub(r"out=\$\{2:\?.*\}", f"out=${{2:-results/{name}}}", text)
    for key in ("completions", "parallelism", "maxFailedIndexes"):
        text = _line(text, f"  {key}: ", str(plan.shards))
    text = text.replace("$(INDEX)/16", f"$(INDEX)/{plan.shards}").replace("configs/cluster.toml", str(config))
    text = text.replace("each of 16 pods", f"each of {plan.shards} pods")
    text = text.replace(
        "  completionMode:", f"  activeDeadlineSeconds: {60 * plan.minutes * 10}\n  completionMode:"
    )
    text = text.replace("image: jaxsens:latest", f"image: jaxsens:{'cuda13' if gpu else 'tpu'}")
    place = "            - --compilation-cache\n"
    text = text.replace(place, "".join(f"            - {json.dumps(word)}\n" for word in options) + place)
    if gpu:
        return re.sub(r'# (nvidia\.com/gpu: )"1"', rf'\1"{count}"', text)
    tpu = plan.target.device.tpu
    if tpu is None or plan.target.slice is None:
        raise TypeError(f"{plan.target.name}: a device of no platform")
    text = re.sub(r'# (google\.com/tpu: )"4"', rf'\1"{count}"', text)
    text = re.sub(r"^( +)# ((?:nodeSelector:|  cloud\.google).*)$", r"\1\2", text, flags=re.MULTILINE)
    text = text.replace("tpu-v5-lite-podslice", tpu.kubernetes)
    return text.replace("gke-tpu-topology: 2x2", f"gke-tpu-topology: {tpu.slices[plan.target.slice]}")


def _line(text: str, begin: str, value: str) -> str:
    """Replaces what follows the one line that begins so, up to its comment."""
    changed, count = re.subn(rf"^{re.escape(begin)}[^\s]+", begin + value, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{count} lines begin with {begin!r}")
    return changed
