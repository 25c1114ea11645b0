"""Below all rooms: findings, the words of the command, and signatures.

findings    NodeFinding: one entry of `check`, with its severity and next step
commands    exit statuses, answers, and the command lines that outputs name
signatures  that of a class whose __new__ refuses
values      a base of values that start fast
"""
