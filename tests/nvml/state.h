/* The state of the fake driver: a text file of `key=value` lines, named by FAKE_NVML_STATE, read again when it changes.
 *
 * Keys of one GPU start with its index (`0.util=3`), those of a MIG instance with both (`3/0.memory_used=5`).
 *
 * count=8                     GPUs there are
 * init=driver_not_loaded      error of nvmlInit; see error_named() for the names
 * hang=1                      every call sleeps until the line is gone; 2.hang=1 only those that ask GPU 2
 * 1.lost=1, 1.reset=1         every call on the GPU fails with GPU_IS_LOST or RESET_REQUIRED
 * 0.unsupported=fan,energy    these fields fail with NOT_SUPPORTED
 * 0.denied=processes          these fail with NO_PERMISSION, 0.unknown=util with UNKNOWN
 * 0.xid=79                    an Xid, told once; write `79 2` for another one
 * 0.processes=12:1048576,9:na pid:bytes of what runs there
 * 3.mig=2                     MIG is on, with two instances
 */
#ifndef STATE_H
#define STATE_H

typedef unsigned long long u64;

typedef struct device {
    int gpu;
    int mig; /* -1: the whole GPU */
} device;

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    VERSION_MISMATCH = 18,
    UNKNOWN = 999
};

#define GPUS 16
#define INSTANCES 7

/* The text of a key without a GPU, or NULL. */
const char *state_text(const char *key);
/* The text of a key of a device, or NULL. */
const char *device_text(const device *which, const char *key);
/* The number of a key of a device, or the one given. */
u64 device_number(const device *which, const char *key, u64 otherwise);
/* Read the file again if it changed, sleep while it says so, and return the error that a call for `field` meets. */
int gate(const device *which, const char *field);
int gpu_count(void);
int error_named(const char *name);

/* The handle of a GPU, or of a MIG instance of it. */
device *handle_of(int gpu, int mig);
/* How many MIG instances the GPU of a device has; 0 when MIG is off. */
int mig_count(const device *which);

#endif
