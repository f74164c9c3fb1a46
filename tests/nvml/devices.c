/* A fake libnvidia-ml.so.1: the calls that nvidia-ml-py makes for Stepscope and nvitop, answered from a text file.
 *
 * It shows which way our code goes, not how a real driver behaves. The file is explained in state.h. Layouts follow
 * nvml.h of CUDA 13 as nvidia-ml-py 13 declares them.
 */
#include "state.h"

#include <stdio.h>
#include <string.h>

static int started;
static device devices[GPUS][1 + INSTANCES];

device *handle_of(int gpu, int mig) {
    device *found = &devices[gpu][mig + 1];
    *found = (device){gpu, mig};
    return found;
}

/* ---- the system ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    gate(NULL, NULL);
    int error = error_named(state_text("init"));
    started += error == OK;
    return error;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (started == 0)
        return UNINITIALIZED;
    started--;
    return OK;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

static int text_into(char *buffer, unsigned size, const char *text) {
    if (strlen(text) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return OK;
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
    gate(NULL, NULL);
    const char *text = state_text("driver");
    return text_into(buffer, size, text == NULL ? "580.65.06" : text);
}

int nvmlSystemGetNVMLVersion(char *buffer, unsigned size) { return text_into(buffer, size, "13.580.65.06"); }

int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 13000;
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* ---- which devices ---- */

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (started == 0)
        return UNINITIALIZED;
    gate(NULL, NULL);
    *count = (unsigned)gpu_count();
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **found) {
    if (started == 0)
        return UNINITIALIZED;
    gate(NULL, NULL);
    if (index >= (unsigned)gpu_count())
        return INVALID_ARGUMENT;
    *found = handle_of((int)index, -1);
    return gate(*found, NULL);
}

static void uuid_of(const device *which, char *into) {
    const char *text = device_text(which, "uuid");
    if (text != NULL)
        sprintf(into, "%.79s", text);
    else if (which->mig < 0)
        sprintf(into, "GPU-%08x-face-4000-8000-%012x", 0x10000000 + which->gpu * 0x01010101, which->gpu);
    else
        sprintf(into, "MIG-%08x-cafe-5000-8000-%012x", 0x20000000 + which->gpu * 0x01010101 + which->mig, which->mig);
}

int nvmlDeviceGetUUID(device *which, char *buffer, unsigned size) {
    char text[96];
    int error = gate(which, "uuid");
    if (error != OK)
        return error;
    uuid_of(which, text);
    return text_into(buffer, size, text);
}

int mig_count(const device *which) {
    int count = (int)device_number(&(device){which->gpu, -1}, "mig", 0);
    return count > INSTANCES ? INSTANCES : count;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device **found) {
    gate(NULL, NULL);
    char text[96];
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        for (int mig = -1; mig < mig_count(&(device){gpu, -1}); mig++) {
            uuid_of(&(device){gpu, mig}, text);
            if (strcmp(text, uuid) == 0) {
                *found = handle_of(gpu, mig);
                return OK;
            }
        }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(device *which, unsigned *index) {
    *index = (unsigned)(which->mig < 0 ? which->gpu : which->mig);
    return gate(which, NULL);
}

int nvmlDeviceGetMinorNumber(device *which, unsigned *number) {
    *number = (unsigned)which->gpu;
    return gate(which, NULL);
}

int nvmlDeviceGetName(device *which, char *buffer, unsigned size) {
    int error = gate(which, "name");
    if (error != OK)
        return error;
    const char *text = device_text(which, "name");
    const char *usual = which->mig < 0 ? "NVIDIA H100 80GB HBM3" : "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
    return text_into(buffer, size, text == NULL ? usual : text);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, number, id, subsystem;
    char text[32];
} pci_info;

int nvmlDeviceGetPciInfo_v3(device *which, pci_info *info) {
    int error = gate(which, "pci");
    if (error != OK)
        return error;
    *info = (pci_info){.bus = 0x10u + (unsigned)which->gpu, .id = 0x233010de};
    snprintf(info->legacy, sizeof info->legacy, "0000:%02x:00.0", info->bus);
    snprintf(info->text, sizeof info->text, "00000000:%02X:00.0", info->bus);
    return OK;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(device *which, unsigned *current, unsigned *pending) {
    int error = gate(which, "mig_mode");
    if (error == OK)
        *current = *pending = mig_count(which) > 0;
    return error;
}

int nvmlDeviceGetMaxMigDeviceCount(device *which, unsigned *count) {
    int error = gate(which, "mig_mode");
    *count = mig_count(which) > 0 ? INSTANCES : 0;
    return error;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *which, unsigned index, device **found) {
    int error = gate(which, "mig_mode");
    if (error != OK)
        return error;
    if ((int)index >= mig_count(which))
        return NOT_FOUND;
    *found = handle_of(which->gpu, (int)index);
    return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *which, device **found) {
    *found = handle_of(which->gpu, -1);
    return gate(which, NULL);
}

int nvmlDeviceIsMigDeviceHandle(device *which, unsigned *answer) {
    *answer = which->mig >= 0;
    return OK;
}

int nvmlDeviceGetGpuInstanceId(device *which, unsigned *id) {
    *id = (unsigned)which->mig + 7;
    return which->mig < 0 ? NOT_SUPPORTED : gate(which, NULL);
}

int nvmlDeviceGetComputeInstanceId(device *which, unsigned *id) {
    *id = 0;
    return which->mig < 0 ? NOT_SUPPORTED : gate(which, NULL);
}

typedef struct {
    unsigned processors, copy, decode, encode, jpeg, flow, slices, compute_slices;
    u64 mebibytes;
} attributes;

int nvmlDeviceGetAttributes_v2(device *which, attributes *value) {
    *value = (attributes){.processors = 16, .copy = 1, .slices = 1, .compute_slices = 1, .mebibytes = 9856};
    return which->mig < 0 ? NOT_SUPPORTED : gate(which, NULL);
}
