"""Small stores of experiment trackers, made here by their schemas, without the vendors' packages."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path

MLFLOW = """
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL);
CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256), lifecycle_stage VARCHAR(32));
CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY, name VARCHAR(250), user_id VARCHAR(256), status VARCHAR(9),
  start_time BIGINT, end_time BIGINT, lifecycle_stage VARCHAR(20), experiment_id INTEGER);
CREATE TABLE metrics ("key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
  run_uuid VARCHAR(32) NOT NULL, step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
  PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan));
CREATE TABLE params ("key" VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32));
CREATE TABLE tags ("key" VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32));
INSERT INTO alembic_version VALUES ('dc11669786a5');
INSERT INTO experiments VALUES (1, 'vision', 'active');
INSERT INTO runs VALUES ('r1', 'first', 'me', 'FINISHED', 1700000000000, 1700000009000, 'active', 1);
INSERT INTO metrics VALUES ('loss', 0.5, 1700000001000, 'r1', 1, 0), ('loss', 0.0, 1700000002000, 'r1', 2, 1);
INSERT INTO params VALUES ('lr', '0.1', 'r1');
INSERT INTO tags VALUES ('team', 'x', 'r1');
"""
TRACKIO = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
  run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT);
CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
  config TEXT NOT NULL, created_at TEXT NOT NULL);
INSERT INTO metrics (run_id, timestamp, run_name, step, metrics, log_id) VALUES
  ('r1', '2026-11-18T06:05:34.5+00:00', 'first', 1, '{"loss": 0.5, "lr": 1}', 'a'),
  ('r1', '2026-11-18T06:05:35.5+00:00', 'first', 2, '{"loss": "NaN", "lr": 1}', 'b');
INSERT INTO configs (run_id, run_name, config, created_at) VALUES
  ('r1', 'first', '{"lr": 0.1, "_Group": "g"}', '2026-11-18T06:05:34+00:00');
"""
OLD_TRACKIO = """
CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, run_name TEXT NOT NULL,
  step INTEGER NOT NULL, metrics TEXT NOT NULL);
INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES
  ('2025-08-01T06:05:34', 'calm-tree-0', 0, '{"loss": 0.5}'),
  ('2025-08-01T06:05:35', 'calm-tree-0', 1, '{"loss": 0.4}'),
  ('2025-08-01T06:05:35', 'wild-sea-1', 0, '{"loss": 2}');
"""


def database(schema, path=None):
    """Return the bytes of a SQLite database made by some statements, or write it to a path."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(path or Path(folder) / "made.db")
        connection = sqlite3.connect(place)
        connection.executescript("PRAGMA page_size = 512;" + schema)  # small, so that damage hits something
        connection.close()
        return place.read_bytes()


def fragment(*records):
    """Return a fragment of Trackio: one JSON object per line, each with its own id."""
    same = {"v": 1, "kind": "metric", "project": "vision", "run": "first", "run_id": "r1"}
    return b"".join(json.dumps({**same, **record}).encode() + b"\n" for record in records)


def folder(files, place):
    """Write files by name below a folder, and return it."""
    for name, data in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return place


FILES = {"mlflow_sql": database(MLFLOW), "trackio": database(TRACKIO)}
"""The smallest file of each format that says something."""
FOLDERS = {
    "mlflow_files": {
        "meta.yaml": b"artifact_uri: x\nrun_id: r1\nrun_name: first\nstatus: 3\nstart_time: 1700000000000\n",
        "metrics/loss": b"1700000001000 0.5 1\n1700000002000 nan 2\n",
        "metrics/train/acc": b"1700000001000 0.5\n1700000002000 0.75 2 data 0af3\n",
        "params/lr": b"0.1",
        "tags/mlflow.note.content": b"a note",
    },
}
"""The same for formats that are folders: files by name."""
