"""Operations on workflows.

add.py          store a workflow with all its jobs
grow.py         a running node adds nodes
act.py          cancel, pause, resume
stop.py         the stop after a failed node
replay.py       replay of a node
end.py          what a finished node means for its workflow
nodes.py        the rows of a workflow and of its live nodes, locked
look.py         workflows and nodes to look at
records.py      the rows of workflows that statements return
prune.py        workflows past their retention are removed
"""
