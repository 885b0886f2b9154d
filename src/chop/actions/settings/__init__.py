"""Settings of the jobs as frozen dataclasses, which import neither torch nor a job.

`chop COMMAND --help` reads options, defaults and help from them: a module has only what one group
of commands needs. What checks a setting against a registry is imported when an instance is made.
"""

__all__: list[str] = []
