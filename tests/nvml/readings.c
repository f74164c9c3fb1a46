/* A fake libnvidia-ml.so.1, second part: what a device does, who runs on it, and what happened to it. See state.h. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ULL << 30)
#define MIB (1ULL << 20)

/* One call that gives one number of a field. */
#define NUMBER(function, type, field, otherwise)                                                                       \
    int function(device *which, type *value) {                                                                         \
        int error = gate(which, field);                                                                                \
        if (error == OK)                                                                                               \
            *value = (type)device_number(which, field, otherwise);                                                     \
        return error;                                                                                                  \
    }

/* One call that this driver does not have for any card. */
#define NEVER(function)                                                                                                \
    int function(device *which, void *first, void *second) {                                                           \
        (void)first, (void)second;                                                                                     \
        int error = gate(which, NULL);                                                                                 \
        return error == OK ? NOT_SUPPORTED : error;                                                                    \
    }

/* ---- what a device does ---- */

static u64 total_of(const device *which) {
    return device_number(which, "memory_total", which->mig < 0 ? 80 * GIB : 9856 * MIB);
}

static u64 used_of(const device *which) {
    return device_number(which, "memory_used", which->mig < 0 ? (u64)(which->gpu + 1) * GIB : 64 * MIB);
}

static u64 reserved_of(const device *which) { return which->mig < 0 ? 512 * MIB : 0; }

int nvmlDeviceGetMemoryInfo(device *which, u64 value[3]) {
    int error = gate(which, "memory");
    if (error != OK)
        return error;
    value[0] = total_of(which);
    value[2] = used_of(which) + reserved_of(which); /* the first version counts the driver's share as used */
    value[1] = value[0] - value[2];
    return OK;
}

typedef struct {
    unsigned version;
    u64 total, reserved, free, used;
} memory_v2;

int nvmlDeviceGetMemoryInfo_v2(device *which, memory_v2 *value) {
    int error = gate(which, "memory");
    if (error == OK)
        error = gate(which, "memory_v2");
    if (error != OK)
        return error;
    value->total = total_of(which);
    value->reserved = reserved_of(which);
    value->used = used_of(which);
    value->free = value->total - value->used - value->reserved;
    return OK;
}

int nvmlDeviceGetUtilizationRates(device *which, unsigned value[2]) {
    int error = gate(which, "util");
    if (error == OK && (which->mig >= 0 || mig_count(which) > 0))
        error = NOT_SUPPORTED; /* as on real cards: no utilisation in MIG mode */
    if (error != OK)
        return error;
    value[0] = (unsigned)device_number(which, "util", 10 + 10 * (u64)which->gpu);
    value[1] = (unsigned)device_number(which, "memory_util", 5 + (u64)which->gpu);
    return OK;
}

int nvmlDeviceGetTemperature(device *which, int sensor, unsigned *value) {
    (void)sensor;
    int error = gate(which, "temperature");
    if (error == OK)
        *value = (unsigned)device_number(which, "temperature", 40 + (u64)which->gpu);
    return error;
}

int nvmlDeviceGetTemperatureV(device *which, int value[3]) {
    unsigned degrees = 0;
    int error = gate(which, "temperature_v");
    if (error == OK)
        error = nvmlDeviceGetTemperature(which, value[1], &degrees);
    value[2] = (int)degrees;
    return error;
}

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power", 100000 + 1000 * (u64)which->gpu)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, "power_limit", 700000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit", 700000)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy", 5000000 + (u64)which->gpu)
NUMBER(nvmlDeviceGetFanSpeed, unsigned, "fan", 30 + (u64)which->gpu)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "throttle", 0)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, "throttle", 0)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replays", 0)
NUMBER(nvmlDeviceGetPerformanceState, unsigned, "pstate", 0)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence", 1)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, "display_active", 0)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, "display_mode", 0)
NUMBER(nvmlDeviceGetComputeMode, unsigned, "compute_mode", 0)
NUMBER(nvmlDeviceGetSupportedEventTypes, u64, "event_types", 8)
NEVER(nvmlDeviceGetDriverModel_v2)
NEVER(nvmlDeviceGetDriverModel)
NEVER(nvmlDeviceGetEncoderUtilization)
NEVER(nvmlDeviceGetDecoderUtilization)

static u64 clock_of(const device *which, int type) {
    return type == 2 ? device_number(which, "memory_clock", 2619) : device_number(which, "sm_clock", 1980);
}

int nvmlDeviceGetClockInfo(device *which, int type, unsigned *value) {
    int error = gate(which, "clock");
    if (error == OK)
        *value = (unsigned)clock_of(which, type);
    return error;
}

int nvmlDeviceGetMaxClockInfo(device *which, int type, unsigned *value) {
    return nvmlDeviceGetClockInfo(which, type, value);
}

int nvmlDeviceGetCudaComputeCapability(device *which, int *major, int *minor) {
    *major = 9, *minor = 0;
    return gate(which, NULL);
}

int nvmlDeviceGetTotalEccErrors(device *which, int type, int counter, u64 *value) {
    (void)counter;
    int error = gate(which, "ecc");
    if (error == OK)
        *value = device_number(which, type == 0 ? "ecc_corrected" : "ecc_uncorrected", 0);
    return error;
}

int nvmlDeviceGetRemappedRows(device *which, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    int error = gate(which, "rows");
    if (error != OK)
        return error;
    *corrected = (unsigned)device_number(which, "rows_corrected", 0);
    *uncorrected = (unsigned)device_number(which, "rows_uncorrected", 0);
    *pending = (unsigned)device_number(which, "rows_pending", 0);
    *failed = (unsigned)device_number(which, "rows_failed", 0);
    return OK;
}

int nvmlDeviceGetPcieThroughput(device *which, int direction, unsigned *value) {
    int error = gate(which, "pcie");
    if (error == OK)
        *value = (unsigned)device_number(which, direction == 0 ? "pcie_sent" : "pcie_received", 1000);
    return error;
}

typedef struct {
    unsigned id, scope;
    long long when, latency;
    unsigned type, error;
    union {
        double real;
        unsigned number;
        u64 large;
    } value;
} field_value;

int nvmlDeviceGetFieldValues(device *which, int count, field_value *values) {
    static const struct {
        unsigned id;
        const char *gate, *key;
    } known[] = {{38, "nvlink", "nvlink_crc_flit"}, {45, "nvlink", "nvlink_crc_data"},
                 {52, "nvlink", "nvlink_replay"},   {59, "nvlink", "nvlink_recovery"},
                 {82, "memory_temperature", "memory_temperature"}, {91, "nvlink", "nvlink_links"},
                 {197, "pcie_count", "pcie_count_sent"},           {198, "pcie_count", "pcie_count_received"}};
    int error = gate(which, "fields");
    if (error != OK)
        return error;
    for (int at = 0; at < count; at++) {
        values[at].error = NOT_SUPPORTED;
        for (size_t row = 0; row < sizeof known / sizeof known[0]; row++) {
            if (known[row].id != values[at].id)
                continue;
            values[at].error = (unsigned)gate(which, known[row].gate);
            values[at].type = values[at].id == 82 || values[at].id == 91 ? 1 : 3;
            values[at].value.large = device_number(which, known[row].key, values[at].id == 82 ? 50 : 0);
        }
    }
    return OK;
}

/* ---- processes ---- */

typedef struct {
    unsigned pid;
    u64 memory;
    unsigned gpu_instance, compute_instance;
} process;

static unsigned processes_of(const device *which, process *into, unsigned room) {
    const char *text = device_text(which, "processes");
    unsigned count = 0;
    while (text != NULL && *text != '\0') {
        char *rest;
        unsigned pid = (unsigned)strtoul(text, &rest, 10);
        u64 memory = strncmp(rest, ":na", 3) == 0 ? ~0ULL : *rest == ':' ? strtoull(rest + 1, NULL, 10) : 0;
        unsigned instance = which->mig < 0 ? ~0U : (unsigned)which->mig + 7;
        if (count < room)
            into[count] = (process){pid, memory, instance, which->mig < 0 ? ~0U : 0};
        count++;
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return count;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *which, unsigned *count, process *into) {
    int error = gate(which, "processes");
    if (error != OK)
        return error;
    unsigned room = into == NULL ? 0 : *count;
    *count = processes_of(which, into, room);
    return *count > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device *which, unsigned *count, process *into) {
    (void)into;
    *count = 0;
    return gate(which, "graphics");
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *which, unsigned *count, process *into) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(which, count, into);
}

int nvmlDeviceGetProcessUtilization(device *which, void *samples, unsigned *count, u64 since) {
    (void)samples, (void)since;
    *count = 0;
    int error = gate(which, "processes");
    return error == OK ? NOT_FOUND : error;
}

/* ---- events ---- */

typedef struct {
    char told[GPUS][64];
    unsigned char wanted[GPUS];
} event_set;

typedef struct {
    device *which;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
} event_data;

int nvmlEventSetCreate(event_set **made) {
    gate(NULL, NULL);
    *made = calloc(1, sizeof(event_set));
    return *made == NULL ? UNKNOWN : OK;
}

int nvmlEventSetFree(event_set *set) {
    free(set);
    return OK;
}

int nvmlDeviceRegisterEvents(device *which, u64 types, event_set *set) {
    int error = gate(which, "xid");
    if (error == OK)
        set->wanted[which->gpu] = (types & 8) != 0;
    return error;
}

int nvmlEventSetWait_v2(event_set *set, event_data *data, unsigned timeout) {
    (void)timeout; /* nobody of ours waits: what is not there yet comes with the next call */
    gate(NULL, NULL);
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        const char *text = device_text(&(device){gpu, -1}, "xid");
        if (!set->wanted[gpu] || text == NULL || strncmp(text, set->told[gpu], sizeof set->told[gpu] - 1) == 0)
            continue;
        snprintf(set->told[gpu], sizeof set->told[gpu], "%.63s", text);
        *data = (event_data){handle_of(gpu, -1), 8, strtoull(text, NULL, 10), ~0U, ~0U};
        return OK;
    }
    return TIMEOUT;
}

int nvmlEventSetWait(event_set *set, event_data *data, unsigned timeout) {
    return nvmlEventSetWait_v2(set, data, timeout);
}
