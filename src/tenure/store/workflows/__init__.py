"""Operations on workflows.

add.py      add a workflow with all of its nodes
grow.py     a running node adds nodes to its workflow
nodes.py    lock the rows of a workflow and of its live nodes
act.py      cancel, pause, resume
replay.py   run a finished node again
stop.py     the stop after a failed node
end.py      the end of a workflow
prune.py    delete workflows past their retention
look.py     reads of workflows and their nodes
"""
