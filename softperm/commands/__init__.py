"""The subcommands of ``softperm``, one file each. Only here and in cli.py is anything printed."""
