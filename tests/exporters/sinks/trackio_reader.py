"""Imports the inbox of a Trackio folder as the dashboard does, and prints what Trackio then holds, as JSON.

Run in a process of its own: `python trackio_reader.py PROJECT`, with TRACKIO_DIR set.
"""

from __future__ import annotations

import json
import sys


def main(project):
    """Import, read back through Trackio's own reader, and print."""
    from trackio import Api, fragments
    from trackio.sqlite_storage import SQLiteStorage

    imported = fragments.import_inbox_dir()
    runs = [
        {
            "name": run.name,
            "id": run.id,
            "config": run.config,
            "logs": SQLiteStorage.get_logs(project, run.name, run_id=run.id),
            "system": SQLiteStorage.get_system_logs(project, run.name, run_id=run.id),
            "alerts": run.alerts(),
        }
        for run in Api().runs(project)
    ]
    json.dump({"imported": imported, "runs": runs}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
