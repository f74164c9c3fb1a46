/* See state.h. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define LINES 512
#define WIDTH 512

static struct {
    char key[64];
    char value[WIDTH];
} lines[LINES];
static int used;
static struct stat seen;

static void load(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0)
        return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    char line[WIDTH + 64];
    used = 0;
    while (used < LINES && fgets(line, sizeof line, file) != NULL) {
        char *equals = strchr(line, '=');
        if (line[0] == '#' || equals == NULL || equals - line >= (long)sizeof lines[0].key)
            continue;
        *equals = '\0';
        equals[1 + strcspn(equals + 1, "\r\n")] = '\0';
        snprintf(lines[used].key, sizeof lines[0].key, "%.63s", line);
        snprintf(lines[used].value, sizeof lines[0].value, "%.*s", WIDTH - 1, equals + 1);
        used++;
    }
    fclose(file);
    seen = now;
}

const char *state_text(const char *key) {
    for (int at = used - 1; at >= 0; at--)
        if (strcmp(lines[at].key, key) == 0)
            return lines[at].value;
    return NULL;
}

const char *device_text(const device *which, const char *key) {
    char name[64];
    if (which->mig < 0)
        snprintf(name, sizeof name, "%d.%s", which->gpu, key);
    else
        snprintf(name, sizeof name, "%d/%d.%s", which->gpu, which->mig, key);
    return state_text(name);
}

u64 device_number(const device *which, const char *key, u64 otherwise) {
    const char *text = device_text(which, key);
    return text == NULL ? otherwise : strtoull(text, NULL, 0);
}

static int listed(const device *which, const char *key, const char *field) {
    const char *text = device_text(which, key);
    size_t length = strlen(field);
    while (text != NULL && *text != '\0') {
        size_t word = strcspn(text, ",");
        if (word == length && strncmp(text, field, word) == 0)
            return 1;
        text += word + (text[word] == ',');
    }
    return 0;
}

static int hanging(const device *which) {
    const char *all = state_text("hang");
    if (all != NULL && strcmp(all, "0") != 0)
        return 1;
    return which != NULL && device_number(&(device){which->gpu, -1}, "hang", 0) != 0;
}

int gate(const device *which, const char *field) {
    load();
    while (hanging(which)) {
        nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
        load();
    }
    if (which == NULL)
        return OK;
    device whole = {which->gpu, -1};
    if (device_number(&whole, "lost", 0))
        return GPU_IS_LOST;
    if (device_number(&whole, "reset", 0))
        return RESET_REQUIRED;
    if (field == NULL)
        return OK;
    if (listed(&whole, "unsupported", field))
        return NOT_SUPPORTED;
    if (listed(&whole, "denied", field))
        return NO_PERMISSION;
    if (listed(&whole, "unknown", field))
        return UNKNOWN;
    return OK;
}

int gpu_count(void) {
    const char *text = state_text("count");
    int count = text == NULL ? 8 : atoi(text);
    return count < 0 ? 0 : count > GPUS ? GPUS : count;
}

int error_named(const char *name) {
    static const struct {
        const char *name;
        int code;
    } names[] = {{"driver_not_loaded", DRIVER_NOT_LOADED},
                 {"version_mismatch", VERSION_MISMATCH},
                 {"no_permission", NO_PERMISSION},
                 {"gpu_is_lost", GPU_IS_LOST},
                 {"unknown", UNKNOWN}};
    for (size_t at = 0; name != NULL && at < sizeof names / sizeof names[0]; at++)
        if (strcmp(name, names[at].name) == 0)
            return names[at].code;
    return name == NULL || *name == '\0' || strcmp(name, "ok") == 0 ? OK : UNKNOWN;
}
