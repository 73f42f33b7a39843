"""Typed composition graphs: read, identify, check, run, cache and trace them.

A library of its own, which knows nothing of sprints. From text to answer it is three steps:

    graph = parse_graph(text)                          # parse: ten ops, errors with a JSON path
    prepared = prepare(graph, catalogue, STRICT)       # prepare: resolve, check, allow
    outcome = run(prepared, value, runner, Settings()) # run: output, trace, cost

| question | module |
|---|---|
| what is in a graph file? | `nodes`, `parse` (`parse_graph`), `jsontext` |
| what is a stage? | `spec` (`StageSpec`, `define`), `specfile`, `effects`, `types`, `shorthand` |
| which stages are there? | `catalogue` (`Catalogue`), `stdlib` (`standard_stages`), `resolve` |
| does it fit together? | `check`, `flow` (values followed forward), `compat`, `unify`, `values` |
| may it run, what does it cost? | `policy`, `prepare` (`prepare`, `Permissions`), `plan` |
| what is its id? | `canonical` (`composition_id`), `spec` (`Identity`) |
| who runs a stage? | `protocols.StageRunner`: `native.Functions`, `foreign.Programs`, |
| | `stdlib.StandardLibrary`, several as one: `runners.Runners` |
| how is a graph run? | `run` (`run`, `Settings`, `Limits`), `executor`, `calls`, `scope` |
| what is remembered? | `protocols.Cache`: `memory.MemoryCache`, `cache.SqliteCache` |
| what survives `kill -9`? | `protocols.Journal`: `journal.SqliteJournal` |
| what was done? | `trace`; `report` says it as Noether does |
| is a stage what it promises? | `examples` (`try_examples`), `properties` |
| what can go wrong? | `errors`: `GraphError` with `path`, `kind` and `exit_code` |

`profile.STRICT` is for our own graphs; `profile.NOETHER` does what Noether 0.8.2 does, its defects
included. Modules are imported where they are used: importing this package loads nothing.
"""
