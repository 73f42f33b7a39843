"""What is said on the forge about an agent that needs help."""

from __future__ import annotations

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone


def execute(given: Json) -> Json:
    agent, title = given["agent_id"], given["task_title"]
    status, action = given["health_status"], given["action"]
    if action == "probe":
        said = (
            f"@caloron-agent-{agent} is {status} at “{title}”. "
            "How far is it, and what stands in the way?"
        )
    elif action == "restart":
        said = (
            f"The agent {agent} is {status} at “{title}” and is restarted. "
            "What is in its workspace is kept."
        )
    elif action == "escalate_human":
        said = (
            "### A person is needed\n\n"
            f"- agent: {agent}\n- task: {title}\n- status: {status}\n\n"
            "Comment `resolved` to let it go on, or `caloron:take-over` to do it yourself."
        )
    else:
        said = f"The agent {agent} is {status} at “{title}”."
    return {"message": said}


if __name__ == "__main__":
    alone(execute)
