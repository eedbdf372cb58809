"""`python -m rookexp.pretrain`: next-token training of a small GPT-2 on whole documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rookexp.config import door


def main() -> None:
    """Entry point: composes conf/pretrain.yaml, then trains."""
    door.enter(pretrain, "pretrain")


def pretrain(config: dict[str, Any], run_folder: Path) -> None:
    """Trains the config's model, or resumes a run; writes checkpoints and metrics under the run's folder."""
    from rookexp import build, session
    from rookexp.config import across
    from rookexp.run_folder import hub, resume_checks
    from rookexp.sweep import job

    with job.at_work(run_folder):
        if config["resume"] is not None:
            config = hub.as_before(config, Path(config["resume"]), door.typed())
            resume_checks.refuse_other(Path(config["resume"]), config, swept=False)
        across.tell(config, door.typed())
        session.pretrain(build.build_pretraining(config, run_folder), config, run_folder)


if __name__ == "__main__":
    main()
