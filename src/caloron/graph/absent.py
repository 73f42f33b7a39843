"""Stages of the standard library that are known by name but cannot be run here, and why."""

from __future__ import annotations

_MODEL = "it needs a model"
_STORE = "it reaches into Noether's own store"
_ARROW = "it needs Apache Arrow"
_REGISTRY = "it is part of Noether's own registry"
_PROCESS = "it is for processes outside the sandbox; write a stage that is a program instead"

ABSENT = {
    "llm_complete": _MODEL,
    "llm_embed": _MODEL,
    "llm_classify": _MODEL,
    "llm_extract": _MODEL,
    "store_search": _STORE,
    "store_add": _STORE,
    "composition_verify": _STORE,
    "trace_read": _STORE,
    "stage_describe": _STORE,
    "arrow_from_records": _ARROW,
    "records_to_arrow": _ARROW,
    "verify_stage_content_hash": _REGISTRY,
    "verify_stage_ed25519": _REGISTRY,
    "check_stage_description": _REGISTRY,
    "check_stage_examples": _REGISTRY,
    "merge_validation_checks": _REGISTRY,
    "spawn_process": _PROCESS,
    "wait_process": _PROCESS,
    "signal_process": _PROCESS,
    "kill_process": _PROCESS,
}
