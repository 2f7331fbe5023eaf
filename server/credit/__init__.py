"""Who took part in a run and what is credited to whom, from what is public already.

participation.py   how often each silo was asked, ready, in sums, lost, waited for
groups.py          published sums of groups, held against the combined update
report.py          all of it, with what the chain says
text.py            as lines, as Markdown, as JSON; what it cannot say
"""
