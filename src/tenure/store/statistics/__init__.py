"""Statistics of ended jobs and attempts, and the number of live jobs.

write.py     what processes have counted is written, and added up to hours and days
look.py      statistics of a time, by queue, task and outcome
depth.py     live jobs are counted now and then, and the last count is read
records.py   the rows that statements return
"""
