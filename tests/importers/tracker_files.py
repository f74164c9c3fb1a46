"""Small stores of experiment trackers, made here by their schemas, without the vendors' packages."""

from __future__ import annotations

import io
import json
import sqlite3
import tempfile
import zipfile
from pathlib import Path

import duckdb

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
GOODSEED = """
CREATE TABLE run_meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE configs (path TEXT PRIMARY KEY, type_tag TEXT NOT NULL, value TEXT, updated_at TEXT NOT NULL,
  uploaded INTEGER NOT NULL DEFAULT 0);
CREATE TABLE metric_series (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE);
CREATE TABLE metric_points (series_id INTEGER NOT NULL REFERENCES metric_series(id), step REAL NOT NULL,
  y REAL NOT NULL, ts INTEGER NOT NULL, uploaded INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (series_id, step));
CREATE TABLE string_series (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE);
CREATE TABLE string_points (series_id INTEGER NOT NULL REFERENCES string_series(id), step REAL NOT NULL,
  value TEXT NOT NULL, ts INTEGER NOT NULL, uploaded INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (series_id, step));
INSERT INTO run_meta VALUES ('schema_version', '1'), ('run_id', 'run-1'), ('project', 'team/vision'),
  ('created_at', '2023-11-14T22:13:20+00:00'), ('name', 'first'), ('status', 'finished'),
  ('closed_at', '2023-11-14T22:13:30+00:00');
INSERT INTO configs VALUES ('sys/tags', 'string_set', '["a", "b"]', '', 0), ('params/lr', 'float', '0.1', '', 0),
  ('params/on', 'bool', 'true', '', 0), ('params/none', 'null', '', '', 0), ('params/text', 'str', '1', '', 0),
  ('sys/description', 'str', 'a note', '', 0);
INSERT INTO metric_series (path) VALUES ('loss'), ('x');
INSERT INTO metric_points (series_id, step, y, ts) VALUES (1, 0, 1, 1700000001), (1, 1, 9e999, 1700000001),
  (2, 1, 3, 1700000001), (2, 2.5, 4, 1700000001);
INSERT INTO string_series (path) VALUES ('console');
INSERT INTO string_points (series_id, step, value, ts) VALUES (1, 0, 'hi', 1700000001);
"""
PLUTO = """
CREATE TABLE runs (run_id TEXT PRIMARY KEY, project TEXT NOT NULL, op_id INTEGER, parent_pid INTEGER,
  created_at REAL NOT NULL, last_heartbeat REAL NOT NULL, finished INTEGER DEFAULT 0, finish_requested_at REAL,
  fully_synced INTEGER DEFAULT 0, config_json TEXT);
CREATE TABLE sync_queue (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, record_type INTEGER NOT NULL,
  payload_json TEXT NOT NULL, timestamp_ms INTEGER NOT NULL, step INTEGER, status INTEGER DEFAULT 0,
  retry_count INTEGER DEFAULT 0, created_at REAL NOT NULL);
INSERT INTO runs VALUES ('run-1', 'vision', 1, 1, 1700000000.5, 1700000000, 1, NULL, 0, '{"lr": 0.1}');
INSERT INTO sync_queue (run_id, record_type, payload_json, timestamp_ms, step, created_at) VALUES
  ('run-1', 0, '{"loss": 0.5, "acc": NaN}', 1700000001000, 1, 0), ('run-1', 5, '{"cpu": 7}', 1700000001000, 1, 0),
  ('run-1', 2, '{"layers": 2}', 1700000001000, NULL, 0), ('run-1', 4, '{"tags": ["a"]}', 1700000001000, NULL, 0),
  ('run-1', 6, '{"message": "hi"}', 1700000001000, NULL, 0);
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


NEPTUNE = """
CREATE TABLE part (project_id VARCHAR, run_id VARCHAR, attribute_path VARCHAR, attribute_type VARCHAR,
  step DECIMAL(18, 6), timestamp TIMESTAMPTZ, int_value BIGINT, float_value DOUBLE, string_value VARCHAR,
  bool_value BOOLEAN, datetime_value TIMESTAMPTZ, string_set_value VARCHAR[], file_value STRUCT(path VARCHAR),
  histogram_value STRUCT(type VARCHAR, edges DOUBLE[], "values" DOUBLE[]));
INSERT INTO part BY NAME SELECT 'team/vision' project_id, 'VIS-1' run_id, 'train/loss' attribute_path,
  'float_series' attribute_type, unnest([0, 0.5, 1]) step, make_timestamptz(1700000000000000) "timestamp",
  unnest(['1', 'nan', 'inf']::DOUBLE[]) float_value;
INSERT INTO part BY NAME SELECT 'team/vision' project_id, 'VIS-1' run_id, 'acc' attribute_path,
  'float_series' attribute_type, unnest([1, 2]) step, make_timestamptz(1700000001000000) "timestamp",
  unnest([0.5, 0.75]) float_value;
INSERT INTO part BY NAME SELECT 'team/vision' project_id, 'VIS-1' run_id, unnest(['sys/name', 'params/model'])
  attribute_path, 'string' attribute_type, unnest(['first', 'resnet']) string_value;
INSERT INTO part BY NAME SELECT 'team/vision' project_id, 'VIS-1' run_id, 'params/lr' attribute_path,
  'float' attribute_type, 0.1 float_value;
INSERT INTO part BY NAME SELECT 'team/vision' project_id, 'VIS-1' run_id, 'sys/tags' attribute_path,
  'string_set' attribute_type, ['a', 'b'] string_set_value;
INSERT INTO part BY NAME SELECT 'team/vision' project_id, 'VIS-1' run_id, 'console' attribute_path,
  'string_series' attribute_type, unnest(['x', 'y']) string_value;
"""
CLEARML = {
    "task.json": json.dumps(
        {
            "id": "offline-1",
            "name": "first",
            "project_name": "vision",
            "comment": "a note",
            "tags": ["a"],
            "hyperparams": {"General": {"lr": {"value": "0.1"}}, "Args": {"epochs": {"value": "3"}}},
        }
    ).encode(),
    "metrics.jsonl": b'[{"timestamp": 1700000001000, "type": "training_stats_scalar", "iter": 1, "metric": "train", '
    b'"variant": "loss", "value": 0.5}, {"timestamp": 1700000001000, "type": "training_stats_scalar", '
    b'"iter": -2147483648, "metric": "Summary", "variant": "acc", "value": 1}]\n',
    "log.jsonl": b'[{"timestamp": 1700000000000, "type": "log", "worker": "node1", "msg": "x"}]\n',
}
COMET = {
    "experiment.json": b'{"offline_id": "e1", "project_name": "vision", "start_time": 1700000000000, "tags": ["a"]}',
    "messages.json": b'{"payload": {"local_timestamp": 1700000001000, "metric": {"metricName": "loss", "metricValue": '
    b'"NaN", "step": 1}}, "type": "metric_msg"}\n{"payload": {"param": {"paramName": "lr", "paramValue": 0.1}}, '
    b'"type": "parameter_msg"}\n{"payload": {"output": "x"}, "type": "standard_output"}\n',
}


def parquet(statements):
    """Return the bytes of a Parquet file with the table `part` that some statements make."""
    with tempfile.TemporaryDirectory() as place, duckdb.connect() as connection:
        connection.execute(statements)
        connection.execute(f"COPY part TO '{place}/part' (FORMAT parquet)")
        return Path(place, "part").read_bytes()


def archive(files, method=zipfile.ZIP_DEFLATED):
    """Return the bytes of a zip with files by name."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as made:
        for name, data in files.items():
            made.writestr(name, data)
    return target.getvalue()


FILES = {
    "mlflow_sql": database(MLFLOW),
    "trackio": database(TRACKIO),
    "neptune": parquet(NEPTUNE),
    "clearml": archive(CLEARML),
    "comet": archive(COMET),
    "goodseed": database(GOODSEED),
    "pluto": database(PLUTO),
}
"""The smallest file of each format that says something."""
PACKED = ("neptune", "clearml", "comet")
"""Formats that are packed themselves, so that nobody packs them again."""
FOLDERS = {
    "clearml": CLEARML,
    "neptune": {"part_0.parquet": FILES["neptune"], "part_1.parquet": FILES["neptune"]},
    "mlflow_files": {
        "meta.yaml": b"artifact_uri: x\nrun_id: r1\nrun_name: first\nstatus: 3\nstart_time: 1700000000000\n",
        "metrics/loss": b"1700000001000 0.5 1\n1700000002000 nan 2\n",
        "metrics/train/acc": b"1700000001000 0.5\n1700000002000 0.75 2 data 0af3\n",
        "params/lr": b"0.1",
        "tags/mlflow.note.content": b"a note",
    },
}
"""The same for formats that are folders: files by name."""
