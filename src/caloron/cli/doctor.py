"""`caloron doctor`: what this machine offers to agents, found out by trying it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click
import msgspec

from caloron.agents.doctor import Finding, examine, framework, no_framework, setup_network
from caloron.agents.frameworks import FRAMEWORKS, framework_on_path, runner_for
from caloron.cli.options import output_option, project_option
from caloron.cli.output import failure, success, wants_json
from caloron.cli.screen import on_screen
from caloron.errors import PreconditionFailed
from caloron.ledger.locate import has_current_project, home
from caloron.ledger.projects import Project, load_project

#: Where the second column begins.
_INDENT = 22


@click.command()
@project_option
@output_option
def doctor(project: str | None) -> int:
    """Check what agents need: sandbox, limits, network, framework, and the project's forge.

    Each check really tries it, and says what to do where it fails.

    \b
    Examples:
      caloron doctor
      caloron doctor --project shop --output json
    """
    loaded = _project(project)
    findings = [_shown(finding) for finding in examine(home())]
    findings.append(_shown(_framework(loaded)))
    if loaded is not None:
        if "setup=full" in loaded.config.network_roles:
            findings.append(_shown(setup_network(loaded.config.network_roles)))
        findings += [_shown(finding) for finding in _forge(loaded)]
    rows = [msgspec.structs.asdict(finding) for finding in findings]
    data = {"project": loaded.name if loaded else None, "checks": rows}
    failed = [finding for finding in findings if finding.needed and not finding.ok]
    if not failed:
        success("doctor", data, "Agents can run here.")
        return 0
    names = ", ".join(finding.check for finding in failed)
    hint = failed[0].remedy if wants_json() else "follow the remedies above, then run it again"
    failure(
        "doctor", PreconditionFailed.code, f"agents cannot run here: {names}", hint=hint, data=data
    )
    return PreconditionFailed.exit_code


def _project(name: str | None) -> Project | None:
    """The project that commands act on; a machine can be looked at before there is any."""
    return load_project(name) if name or has_current_project() else None


def _shown(finding: Finding) -> Finding:
    if not wants_json():
        mark = "ok  " if finding.ok else "FAIL" if finding.needed else "note"
        click.echo(f"{mark} {finding.check:<16} {on_screen(finding.detail, _INDENT)}")
        for line in finding.remedy.splitlines():
            click.echo(f"{'':<{_INDENT}}{on_screen(line, _INDENT)}")
    return finding


def _forge(project: Project) -> Iterator[Finding]:
    """The forge; a project of an older Caloron gets its own with its first sprint."""
    if not project.is_remote and not project.forge_git.exists():
        return
    from caloron.engine.forge_checks import examine_forge

    yield from examine_forge(project)


def _framework(project: Project | None) -> Finding:
    if project is None:
        found = framework_on_path()
        if not found:
            return no_framework(FRAMEWORKS)
        return framework(found, partial(runner_for, found, stub_fixture="", command=()))
    from caloron.engine.workshop import runner

    name = project.config.framework
    return framework(name, partial(runner, project, name))
