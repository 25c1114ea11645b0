"""Below all rooms: findings, the words of the command, and the pause of the garbage collector.

findings    NodeFinding: one entry of `check`, with its severity and next step
commands    exit statuses, answers, and the command lines that outputs name
collector   the pause
"""
