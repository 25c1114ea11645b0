"""Below all rooms: findings, the words of the command, signatures, and the collector's pause.

findings    NodeFinding: one entry of `check`, with its severity and next step
commands    exit statuses, answers, and the command lines that outputs name
collector   the pause of the garbage collector
signatures  that of a class whose __new__ refuses
"""
