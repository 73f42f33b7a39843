"""`caloron doctor`: tries everything that agents need on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click
import msgspec

from caloron.agents.clis.registry import agent_cli, framework_on_path
from caloron.agents.doctor import Finding, examine, framework, no_framework, setup_network
from caloron.cli.app import Answer, Failed, command
from caloron.cli.output import wants_json
from caloron.cli.render import on_screen
from caloron.ledger.locate import has_current_project, home
from caloron.ledger.projects import Project, load_project

#: Where the second column begins.
_INDENT = 22


@command(project=True, examples=["caloron doctor", "caloron doctor --project shop --output json"])
def doctor(project: str | None) -> Answer:
    """Check what agents need: sandbox, limits, network, framework, and the project's forge.

    Each check really tries it, and prints a remedy where it fails.
    """
    # The machine can be checked before there is any project.
    loaded = load_project(project) if project or has_current_project() else None
    findings = [_printed(finding) for finding in examine(home())]
    findings.append(_printed(_framework(loaded)))
    if loaded is not None:
        if "setup=full" in loaded.config.network_roles:
            findings.append(_printed(setup_network(loaded.config.network_roles)))
        findings += [_printed(finding) for finding in _forge(loaded)]
    rows = [msgspec.structs.asdict(finding) for finding in findings]
    data = {"project": loaded.name if loaded else None, "checks": rows}
    failed = [finding for finding in findings if finding.needed and not finding.ok]
    if not failed:
        return Answer(data, "Agents can run here.")
    names = ", ".join(finding.check for finding in failed)
    hint = failed[0].remedy if wants_json() else "follow the remedies above, then run it again"
    raise Failed("PRECONDITION_FAILED", f"agents cannot run here: {names}", hint=hint, data=data)


def _printed(finding: Finding) -> Finding:
    if not wants_json():
        mark = "ok  " if finding.ok else "FAIL" if finding.needed else "note"
        click.echo(f"{mark} {finding.check:<16} {on_screen(finding.detail, _INDENT)}")
        for line in finding.remedy.splitlines():
            click.echo(f"{'':<{_INDENT}}{on_screen(line, _INDENT)}")
    return finding


def _forge(project: Project) -> Iterator[Finding]:
    """Check the forge; an imported project gets its own with its first sprint."""
    if not project.is_remote and not project.forge_git.exists():
        return
    from caloron.engine.forge.checks import examine_forge

    yield from examine_forge(project)


def _framework(project: Project | None) -> Finding:
    if project is None:
        detected = framework_on_path()
        if not detected:
            return no_framework()
        return framework(detected, partial(agent_cli, detected))
    from caloron.engine.runs.runtime import runner

    name = project.config.framework
    return framework(name, partial(runner, project, name))
