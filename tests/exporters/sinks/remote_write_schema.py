"""The messages of Prometheus remote write for the official protobuf: no generated module was found here."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DOUBLE, INT64, STRING, MESSAGE, UINT32 = 1, 3, 9, 11, 13
ONE, MANY = 1, 3


def _messages(package, table):
    """Return the classes of messages, each a table of fields: number, kind, how many, and the message that it holds."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, content in table.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, label, *held) in content.items():
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=f".{package}.{held[0]}" if held else None
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table]


SAMPLE = {"value": (1, DOUBLE, ONE), "timestamp": (2, INT64, ONE)}
*_, WRITE_REQUEST = _messages(
    "prometheus",
    {
        "Sample": SAMPLE,
        "Label": {"name": (1, STRING, ONE), "value": (2, STRING, ONE)},
        "TimeSeries": {"labels": (1, MESSAGE, MANY, "Label"), "samples": (2, MESSAGE, MANY, "Sample")},
        "WriteRequest": {"timeseries": (1, MESSAGE, MANY, "TimeSeries")},
    },
)
*_, REQUEST = _messages(
    "io.prometheus.write.v2",
    {
        "Sample": SAMPLE,
        "Metadata": {"type": (1, UINT32, ONE), "help_ref": (3, UINT32, ONE), "unit_ref": (4, UINT32, ONE)},
        "TimeSeries": {
            "labels_refs": (1, UINT32, MANY),
            "samples": (2, MESSAGE, MANY, "Sample"),
            "metadata": (5, MESSAGE, ONE, "Metadata"),
        },
        "Request": {"symbols": (4, STRING, MANY), "timeseries": (5, MESSAGE, MANY, "TimeSeries")},
    },
)


def read_1(data):
    """Return the series of a 1.0 message: labels, and samples as (milliseconds, value)."""
    return [
        (
            tuple((label.name, label.value) for label in series.labels),
            [(sample.timestamp, sample.value) for sample in series.samples],
        )
        for series in WRITE_REQUEST.FromString(data).timeseries
    ]


def read_2(data):
    """Return the series of a 2.0 message as `read_1` does, each with its type, help and unit."""
    message = REQUEST.FromString(data)
    symbols = list(message.symbols)
    assert symbols[0] == ""
    assert len(set(symbols)) == len(symbols)
    found = []
    for series in message.timeseries:
        words = [symbols[ref] for ref in series.labels_refs]
        about = series.metadata.type, symbols[series.metadata.help_ref], symbols[series.metadata.unit_ref]
        samples = [(sample.timestamp, sample.value) for sample in series.samples]
        found.append((tuple(zip(words[::2], words[1::2], strict=True)), samples, about))
    return found
