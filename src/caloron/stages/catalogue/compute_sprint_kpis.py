"""The numbers of a sprint."""

from __future__ import annotations

from msgspec.structs import replace

from caloron.domain.retro import Run
from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.shapes import moment, plain, read, state_of
from caloron.stages.retro import compute_sprint_kpis


def execute(given: Json) -> Json:
    state = state_of(given["state"])
    started, ended = moment(given.get("started_at")), moment(given.get("ended_at"))
    before = state.sprint
    sprint = replace(
        before,
        created_at=before.created_at if started is None else started,
        ended_at=before.ended_at if ended is None else ended,
    )
    if sprint.ended_at is None:
        raise ValueError("ended_at: a sprint that goes on needs the time until which to count")
    runs: list[Run] = read(given.get("runs") or [], list[Run], "runs")
    return plain(compute_sprint_kpis(replace(state, sprint=sprint), runs, sprint.ended_at))


if __name__ == "__main__":
    alone(execute)
