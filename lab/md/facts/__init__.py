"""What md and mdadm do, as pure tables and rules.

Nothing here runs anything: the array kind ``md`` builds and checks arrays with it, and theory
predicts from it. Sources are named by file and function of mdadm and of the kernel's
``drivers/md``.
"""
