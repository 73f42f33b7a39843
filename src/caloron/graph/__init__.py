"""Typed composition graphs: parse, identify, check, run, cache and trace them.

A library of its own, which knows nothing of sprints. From text to answer it is two steps:

    prepared = prepare(text, catalogue)         # parse, resolve, check, test permissions
    result = run(prepared, value, runner)       # output, trace, cost

| question | module |
|---|---|
| what is in a graph file? | `parser` (`parse_graph`), `nodes` (also ids), `json_text` |
| what is a stage? | `stage` (`StageSpec`, `define`), `stage_file`, `types`, `type_syntax` |
| which stages exist? | `catalogue` (`Catalogue.lookup`), `stdlib` (`standard_stages`) |
| does it fit together? | `checker`, `subtyping` |
| may it run? | `prepare` (`prepare`, `Permissions`) |
| what would it run? | `planning`, `drawing` |
| how is a graph run? | `runtime/` (`run`, `Settings`, `RunLimits`), `runtime.protocols` |
| who runs a stage? | `runners/` (`FunctionRunner`, `SubprocessRunner`, `RunnerChain`), `stdlib` |
| what is stored? | `storage/` (`MemoryCache`, `SqliteCache`, `SqliteJournal`) |
| does a stage keep its examples? | `runners.examples` |
| what can go wrong? | `errors`: `GraphError` with `path`, `kind` and `exit_code` |

`strict=False` reads and checks a graph as Noether does. Importing this package loads no module.
"""
