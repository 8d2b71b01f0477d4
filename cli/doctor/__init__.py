"""Examines a machine for a broker (`aerobee doctor`), and checks for monitoring (`aerobee check`).

Each module finds out about one subject and gives findings. The files of /proc and /sys are looked
for below a root that tests may choose.
"""
