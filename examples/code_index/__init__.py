"""A code-navigation index of a Python source tree: where is it defined, and who uses it?

It is an example of naviscope-ingest, and a program of some use. It indexes the standard library of the interpreter at
hand, or the tree you name, into one SQLite file:

    python -m examples.code_index
    python -m examples.code_index --path ~/src/project
    python -m examples.code_index --find json.dumps

Interrupt it, or kill it, and start it again: it goes on where it was. Start it after an edit, and it does again what
the edit touched.

| module | what it holds |
|---|---|
| `syntax` | reads the names of one file: what it defines, imports and uses. Knows no other file |
| `names` | follows a dotted name through imports, re-exports and base classes to its definition |
| `tables` | the tables, and the ops and queries on them |
| `tree` | finds the files, and what an edit touched |
| `pipeline` | the messages: survey, declare, resolve, summarize. This is where to start reading |
| `screen` | progress and report |
"""
