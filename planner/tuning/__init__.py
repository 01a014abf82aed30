"""`tune`: plans of a result measured, what that says of the site learned, and the job planned anew with it.

measuring    which plans, and how long they took: stated, or run on this machine
tuning       a RESULT -> measured times -> factors of the site (`planner.site`) -> the list after them
"""
