"""The tables of MLflow 3.17 that we write, as `mlflow db upgrade` makes them in SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing

TABLES = """
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
INSERT INTO alembic_version VALUES ('dc11669786a5');
CREATE TABLE experiments (
    experiment_id INTEGER NOT NULL, name VARCHAR(256) NOT NULL, artifact_location VARCHAR(256),
    lifecycle_stage VARCHAR(32), creation_time BIGINT, last_update_time BIGINT,
    workspace VARCHAR(63) DEFAULT 'default' NOT NULL,
    CONSTRAINT experiment_pk PRIMARY KEY (experiment_id),
    CHECK (lifecycle_stage IN ('active', 'deleted')), UNIQUE (workspace, name));
CREATE TABLE runs (
    run_uuid VARCHAR(32) NOT NULL, name VARCHAR(250), source_type VARCHAR(20), source_name VARCHAR(500),
    entry_point_name VARCHAR(50), user_id VARCHAR(256), status VARCHAR(9), start_time BIGINT, end_time BIGINT,
    source_version VARCHAR(50), lifecycle_stage VARCHAR(20), artifact_uri VARCHAR(200), experiment_id INTEGER,
    deleted_time BIGINT, PRIMARY KEY (run_uuid),
    CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')),
    CHECK (lifecycle_stage IN ('active', 'deleted')),
    FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id),
    CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED')));
CREATE TABLE metrics (
    "key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL, run_uuid VARCHAR(32) NOT NULL,
    step BIGINT DEFAULT '0' NOT NULL, is_nan BOOLEAN DEFAULT '0' NOT NULL,
    PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan),
    FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), CHECK (is_nan IN (0, 1)));
CREATE TABLE latest_metrics (
    "key" VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT, step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL,
    run_uuid VARCHAR(32) NOT NULL, PRIMARY KEY ("key", run_uuid),
    FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid), CHECK (is_nan IN (0, 1)));
CREATE TABLE params (
    "key" VARCHAR(250) NOT NULL, value VARCHAR(8000) NOT NULL, run_uuid VARCHAR(32) NOT NULL,
    PRIMARY KEY ("key", run_uuid), FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid));
CREATE TABLE tags (
    "key" VARCHAR(250) NOT NULL, value VARCHAR(8000), run_uuid VARCHAR(32) NOT NULL,
    PRIMARY KEY ("key", run_uuid), FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid));
"""


def change(path, text):
    """Run statements on a database."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(text)


def rows_of(path, text):
    """Return the rows of a query."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(text).fetchall()
