/* The hot path in C: twins of the methods of hotpath.py that a training step calls, on the very same objects.

   Between two of these calls a training step runs through all caches. What a call costs is then not its instructions but
   the memory it touches, and here that is a few lines. Each function does the common case only. Whatever is not plain
   (a new name, a tensor, a full segment, another thread in a write, a run that is off) goes to its twin in Python before
   anything was changed, so there is one place where such cases are thought about.

   A function of C runs to its end before another thread or a signal handler of Python does: while the token of the ring
   is in its place nobody else writes. Built for CPython with a GIL on x86, where stores are seen in their order. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#define MOST 128 /* values of a row */
#define HEAD_BYTES 32
#define WORD_HEAD 4
#define WORD_CALLS 8
#define WORD_CALL_NS 9

typedef union { double real; long long whole; } Cell;

enum { /* slots of a Recorder */
    BUFFER, COUNTING, CURRENT, DUE, HEAD, INDEX, INTAKE, LAYOUTS, LIMIT, MARK, PENDING, PHASES, RECORDING, SEQUENCE,
    SHIFT, SIDE, SPENT, STACK, STEP, STEP_LAYOUTS, THREAD, TOKENS, WORDS, SLOTS
};
static const char *SLOT_NAMES[SLOTS] = {
    "_buffer", "_counting", "_current", "_due", "_head", "_index", "_intake", "_layouts", "_limit", "_mark", "_pending",
    "_phases", "recording", "_sequence", "_shift", "_side", "_spent", "_stack", "_step", "_step_layouts", "_thread",
    "_tokens", "_words"
};
static Py_ssize_t slots[SLOTS];
static Py_ssize_t step_recorder, step_index, step_samples, phase_recorder, phase_name, phase_foreign;
static PyTypeObject *Recorder, *Step, *Phase, *Deque;
static PyObject *python_log, *python_write, *python_phase, *python_step, *python_end;
static PyObject *python_step_enter, *python_phase_enter, *python_phase_exit;
static PyObject *test_clock, *text_step, *text_samples, *text_look, *text_deferred;

#define AT(object, offset) (*(PyObject **)((char *)(object) + (offset)))
#define GET(recorder, slot) AT(recorder, slots[slot])

static long long now_ns(void)
{
    struct timespec now;
    if (test_clock != NULL) {
        PyObject *told = PyObject_CallNoArgs(test_clock);
        long long value = told ? PyLong_AsLongLong(told) : 0;
        Py_XDECREF(told);
        return value;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void put(PyObject *object, Py_ssize_t offset, PyObject *value) /* takes the reference */
{
    PyObject *before = AT(object, offset);
    AT(object, offset) = value;
    Py_XDECREF(before);
}

static int put_number(PyObject *object, Py_ssize_t offset, long long value)
{
    PyObject *number = PyLong_FromLongLong(value);
    if (number == NULL) return -1;
    put(object, offset, number);
    return 0;
}

/* Read an exact int; say whether there was one that fits. */
static int whole(PyObject *object, long long *value)
{
    int overflow = 0;
    if (object == NULL || !PyLong_CheckExact(object)) return 0;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* Read one of Python's own numbers as a double; say whether it was one. */
static int real(PyObject *object, double *value)
{
    if (PyFloat_CheckExact(object)) {
        *value = PyFloat_AS_DOUBLE(object);
        return 1;
    }
    if (!PyLong_CheckExact(object) && !PyBool_Check(object)) return 0;
    *value = PyLong_AsDouble(object);
    if (*value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear(); /* too large: Python says so */
        return 0;
    }
    return 1;
}

static int number_of(PyObject *recorder, int slot, long long *value) { return whole(GET(recorder, slot), value); }

/* Say whether a deque is empty; it keeps its length where every object of variable size does. */
static int is_empty(PyObject *queue) { return queue != NULL && Py_IS_TYPE(queue, Deque) && Py_SIZE(queue) == 0; }

/* The layouts of the last calls of `log`. A program logs the same literal names again: to compare where they lie is
   cheaper than to look each up, and touches none of them. */
#define RECENT 16
typedef struct { PyObject *layouts, *names, *layout; } Known;
static Known recent[RECENT];

static Known *place_of(PyObject *first, Py_ssize_t size)
{
    return &recent[(((size_t)first >> 4) ^ ((size_t)first >> 9) ^ (size_t)size) % RECENT];
}

/* Return the layout for these names, borrowed; NULL if there is none. */
static PyObject *layout_for(PyObject *layouts, PyObject *const *names, Py_ssize_t size)
{
    Known *known = place_of(names[0], size);
    PyObject *key, *layout;
    Py_ssize_t at;
    if (known->layouts == layouts && PyTuple_GET_SIZE(known->names) == size &&
        memcmp(&PyTuple_GET_ITEM(known->names, 0), names, (size_t)size * sizeof(PyObject *)) == 0)
        return known->layout;
    if ((key = PyTuple_New(size)) == NULL) return NULL;
    for (at = 0; at < size; at++) PyTuple_SET_ITEM(key, at, Py_NewRef(names[at]));
    layout = PyDict_GetItemWithError(layouts, key);
    if (layout != NULL) {
        Known old = *known;
        *known = (Known){Py_NewRef(layouts), Py_NewRef(key), Py_NewRef(layout)};
        Py_XDECREF(old.layouts);
        Py_XDECREF(old.names);
        Py_XDECREF(old.layout);
    }
    Py_DECREF(key);
    return layout;
}

/* Do what follows a write now and then: rows that came inside another's, and a look at the watcher. */
static int after_write(PyObject *recorder, long long now)
{
    long long due;
    if (!is_empty(GET(recorder, SIDE))) {
        PyObject *done = PyObject_CallMethodNoArgs(recorder, text_deferred);
        if (done == NULL) return -1;
        Py_DECREF(done);
    }
    if (number_of(recorder, DUE, &due) && now > due) {
        PyObject *when = PyLong_FromLongLong(now), *next;
        if (when == NULL) return -1;
        next = PyObject_CallMethodObjArgs(GET(recorder, INTAKE), text_look, GET(recorder, WORDS), when, NULL);
        Py_DECREF(when);
        if (next == NULL) return -1;
        put(recorder, slots[DUE], next);
    }
    return 0;
}

/* Say whether this row has the layout's columns: the kinds are there, and as many. */
static int fits(PyObject *layout, const char **kinds, Py_ssize_t count)
{
    PyObject *bytes;
    if (!PyTuple_CheckExact(layout) || PyTuple_GET_SIZE(layout) != 5) return 0;
    bytes = PyTuple_GET_ITEM(layout, 4);
    if (!PyBytes_CheckExact(bytes) || PyBytes_GET_SIZE(bytes) != count || count > MOST) return 0;
    *kinds = PyBytes_AS_STRING(bytes);
    return 1;
}

/* Write a row; `step` NULL for the current one. Returns 1, 0 if Python has to do it (nothing was changed), -1. */
static int write_row(PyObject *recorder, PyObject *layout, long long now, PyObject *step, const Cell *row, Py_ssize_t count)
{
    PyObject *tokens = GET(recorder, TOKENS);
    long long head, limit, shift, sequence, at, size, schema, place;
    unsigned int sizes[2];
    Py_buffer view;
    char *target;
    unsigned long long *words;
    if (GET(recorder, RECORDING) != Py_True || !PyList_CheckExact(tokens) || PyList_GET_SIZE(tokens) != 1) return 0;
    if (!whole(PyTuple_GET_ITEM(layout, 1), &size) || !whole(PyTuple_GET_ITEM(layout, 2), &schema)) return 0;
    if (size != HEAD_BYTES + 8 * count) return 0;
    if (!number_of(recorder, HEAD, &head) || !number_of(recorder, LIMIT, &limit) || head + size > limit) return 0;
    if (!number_of(recorder, SHIFT, &shift) || !number_of(recorder, SEQUENCE, &sequence)) return 0;
    if (step == NULL ? !number_of(recorder, INDEX, &at) : !whole(step, &at)) return 0;
    if (PyObject_GetBuffer(GET(recorder, BUFFER), &view, PyBUF_WRITABLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    place = head + shift;
    if (place < 4096 || place + size > view.len) {
        PyBuffer_Release(&view);
        return 0;
    }
    target = (char *)view.buf + place;
    sizes[0] = (unsigned int)size;
    sizes[1] = (unsigned int)schema;
    memcpy(target, sizes, 8);
    memcpy(target + 8, &sequence, 8);
    memcpy(target + 16, &now, 8);
    memcpy(target + 24, &at, 8);
    memcpy(target + HEAD_BYTES, row, 8 * (size_t)count);
    words = (unsigned long long *)view.buf;
    head += size;
    __atomic_store_n(&words[WORD_HEAD], (unsigned long long)head, __ATOMIC_RELEASE);
    if ((sequence & 63) == 63) {
        words[WORD_CALLS] += 1;
        words[WORD_CALL_NS] += (unsigned long long)(now_ns() - now);
    }
    PyBuffer_Release(&view);
    if (put_number(recorder, slots[HEAD], head) < 0 || put_number(recorder, slots[SEQUENCE], sequence + 1) < 0) return -1;
    if (step == NULL && GET(recorder, COUNTING) == Py_True && put_number(recorder, slots[INDEX], at + 1) < 0) return -1;
    return after_write(recorder, now) < 0 ? -1 : 1;
}

/* Call the twin of a method. */
static PyObject *in_python(PyObject *twin, PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t more = names ? PyTuple_GET_SIZE(names) : 0;
    PyObject *small[8], **all = small, *done;
    if (count + more + 1 > 8 && (all = PyMem_New(PyObject *, count + more + 1)) == NULL) return PyErr_NoMemory();
    all[0] = self;
    if (count + more) memcpy(all + 1, args, (size_t)(count + more) * sizeof(PyObject *));
    done = PyObject_Vectorcall(twin, all, (size_t)(count + 1), names);
    if (all != small) PyMem_Free(all);
    return done;
}

static PyObject *hot_log(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long now = now_ns();
    PyObject *values, *step = NULL, *layout, *name, *value, *seen[MOST];
    Py_ssize_t size, place = 0, at = 0;
    const char *kinds;
    Cell row[MOST];
    int done = 0;
    if (count != 1 || !PyDict_CheckExact(args[0]) || !is_empty(GET(self, PENDING))) goto python;
    if (names != NULL) {
        if (PyTuple_GET_SIZE(names) != 1 || PyUnicode_Compare(PyTuple_GET_ITEM(names, 0), text_step)) goto python;
        step = args[1] == Py_None ? NULL : args[1];
    }
    values = args[0];
    size = PyDict_GET_SIZE(values);
    if (size == 0 || size > MOST) goto python;
    while (PyDict_Next(values, &place, &name, &value)) {
        seen[at] = name;
        if (!real(value, &row[at++].real)) goto python;
    }
    layout = layout_for(GET(self, LAYOUTS), seen, size);
    Py_XINCREF(layout);
    if (layout != NULL) {
        if (fits(layout, &kinds, size) && memchr(kinds, 'q', (size_t)size) == NULL)
            done = write_row(self, layout, now, step, row, size);
        Py_DECREF(layout);
    }
    if (done < 0) return NULL;
    if (done) Py_RETURN_NONE;
python:
    PyErr_Clear(); /* a key that cannot be hashed */
    return in_python(python_log, self, args, count, names);
}

static PyObject *hot_write(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const char *kinds;
    long long now;
    Cell row[MOST];
    Py_ssize_t size, at;
    int done = 0;
    if (count != 4 || !PyTuple_CheckExact(args[3]) || !whole(args[1], &now)) goto python;
    size = PyTuple_GET_SIZE(args[3]);
    if (!fits(args[0], &kinds, size)) goto python;
    for (at = 0; at < size; at++) {
        PyObject *value = PyTuple_GET_ITEM(args[3], at);
        if (kinds[at] == 'q' ? !whole(value, &row[at].whole) : !real(value, &row[at].real)) goto python;
    }
    done = write_row(self, args[0], now, args[2] == Py_None ? NULL : args[2], row, size);
    if (done < 0) return NULL;
    if (done) Py_RETURN_NONE;
python:
    return in_python(python_write, self, args, count, NULL);
}

static PyObject *hot_phase(PyObject *self, PyObject *name)
{
    PyObject *phases = GET(self, PHASES), *found = NULL;
    if (PyUnicode_CheckExact(name) && PyDict_CheckExact(phases)) found = PyDict_GetItemWithError(phases, name);
    if (found != NULL) return Py_NewRef(found);
    PyErr_Clear();
    return in_python(python_phase, self, &name, 1, NULL);
}

static PyObject *hot_step(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *step = GET(self, STEP), *samples = Py_None;
    if (step == NULL || !PyObject_TypeCheck(step, Step) || count > 1) goto python;
    if (names != NULL) {
        if (count || PyTuple_GET_SIZE(names) != 1 || PyUnicode_Compare(PyTuple_GET_ITEM(names, 0), text_samples)) goto python;
        samples = args[0];
    } else if (count) {
        samples = args[0];
    }
    put(step, step_samples, Py_NewRef(samples));
    put(step, step_index, Py_NewRef(Py_None));
    return Py_NewRef(step);
python:
    return in_python(python_step, self, args, count, names);
}

/* Add the time since the last mark to a phase, and mark now. */
static int charge(PyObject *recorder, PyObject *name, long long now)
{
    PyObject *spent = GET(recorder, SPENT), *before, *after;
    long long mark, sum = 0;
    int failed;
    if (!number_of(recorder, MARK, &mark)) mark = 0;
    before = PyDict_GetItemWithError(spent, name);
    if (before != NULL && !whole(before, &sum)) sum = 0;
    after = PyLong_FromLongLong(sum + (mark ? now - mark : 0));
    if (after == NULL) return -1;
    failed = PyDict_SetItem(spent, name, after);
    Py_DECREF(after);
    return failed < 0 ? -1 : put_number(recorder, slots[MARK], now);
}

static int end_step(PyObject *recorder, PyObject *samples)
{
    PyObject *spent = GET(recorder, SPENT), *key, *layout, *name, *value, *done;
    long long now = now_ns(), total = 0;
    Py_ssize_t size, place = 0, at = 0, count;
    const char *kinds;
    Cell row[MOST];
    int written = 0;
    if (charge(recorder, GET(recorder, CURRENT), now) < 0) return -1;
    size = PyDict_GET_SIZE(spent);
    count = 1 + size + (samples != Py_None);
    if (count > MOST || (samples != Py_None && !real(samples, &row[1 + size].real))) goto python;
    if ((key = PyTuple_New(size + 1)) == NULL) return -1;
    while (PyDict_Next(spent, &place, &name, &value)) {
        PyTuple_SET_ITEM(key, at++, Py_NewRef(name));
        if (!whole(value, &row[at].whole)) row[at].whole = 0;
        total += row[at].whole;
    }
    PyTuple_SET_ITEM(key, at, Py_NewRef(samples == Py_None ? Py_False : Py_True));
    row[0].whole = total;
    layout = PyDict_GetItemWithError(GET(recorder, STEP_LAYOUTS), key);
    Py_XINCREF(layout);
    Py_DECREF(key);
    if (layout != NULL) {
        if (fits(layout, &kinds, count)) written = write_row(recorder, layout, now, GET(recorder, INDEX), row, count);
        Py_DECREF(layout);
    }
    if (written) {
        PyDict_Clear(spent);
        return written < 0 ? -1 : 0;
    }
python:
    PyErr_Clear();
    done = in_python(python_end, recorder, &samples, 1, NULL); /* it charges the moments since, and marks anew */
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *hot_end_step(PyObject *self, PyObject *samples)
{
    if (!PyDict_Check(GET(self, SPENT))) return in_python(python_end, self, &samples, 1, NULL);
    return end_step(self, samples) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *hot_step_enter(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *recorder = AT(self, step_recorder);
    long long index, mark;
    if (AT(self, step_index) != Py_None || !PyObject_TypeCheck(recorder, Recorder)) goto python;
    if (!number_of(recorder, INDEX, &index) || !number_of(recorder, MARK, &mark)) goto python;
    index = GET(recorder, COUNTING) == Py_True ? 0 : index + 1;
    put(recorder, slots[THREAD], PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
    if (!mark && put_number(recorder, slots[MARK], now_ns()) < 0) return NULL;
    if (put_number(recorder, slots[INDEX], index) < 0) return NULL;
    put(recorder, slots[COUNTING], Py_NewRef(Py_False));
    return Py_NewRef(GET(recorder, INDEX));
python:
    return in_python(python_step_enter, self, NULL, 0, NULL);
}

static PyObject *hot_step_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    PyObject *recorder = AT(self, step_recorder), *samples = AT(self, step_samples);
    int failed;
    if (!PyObject_TypeCheck(recorder, Recorder)) return in_python(python_end, recorder, &samples, 1, NULL);
    Py_INCREF(samples);
    failed = end_step(recorder, samples);
    Py_DECREF(samples);
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *hot_phase_enter(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *recorder = AT(self, phase_recorder), *current;
    int failed;
    if (!PyObject_TypeCheck(recorder, Recorder)) goto python;
    if (PyLong_AsUnsignedLong(GET(recorder, THREAD)) != PyThread_get_thread_ident()) goto python;
    current = Py_NewRef(GET(recorder, CURRENT));
    failed = charge(recorder, current, now_ns()) < 0 || PyList_Append(GET(recorder, STACK), current) < 0;
    Py_DECREF(current);
    if (failed) return NULL;
    put(recorder, slots[CURRENT], Py_NewRef(AT(self, phase_name)));
    Py_RETURN_NONE;
python:
    PyErr_Clear();
    return in_python(python_phase_enter, self, NULL, 0, NULL);
}

static PyObject *hot_phase_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *recorder = AT(self, phase_recorder), *stack, *outer;
    Py_ssize_t depth;
    if (!PyObject_TypeCheck(recorder, Recorder) || PyList_GET_SIZE(AT(self, phase_foreign))) goto python;
    stack = GET(recorder, STACK);
    depth = PyList_GET_SIZE(stack);
    if (!depth) goto python;
    if (charge(recorder, AT(self, phase_name), now_ns()) < 0) return NULL;
    outer = Py_NewRef(PyList_GET_ITEM(stack, depth - 1));
    if (PyList_SetSlice(stack, depth - 1, depth, NULL) < 0) return NULL;
    put(recorder, slots[CURRENT], outer);
    Py_RETURN_NONE;
python:
    return in_python(python_phase_exit, self, args, count, NULL);
}

static PyMethodDef RECORDER_METHODS[] = {
    {"log", (PyCFunction)(void (*)(void))hot_log, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_write", (PyCFunction)(void (*)(void))hot_write, METH_FASTCALL, NULL},
    {"phase", (PyCFunction)hot_phase, METH_O, NULL},
    {"step", (PyCFunction)(void (*)(void))hot_step, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_end_step", (PyCFunction)hot_end_step, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef STEP_METHODS[] = {
    {"__enter__", (PyCFunction)hot_step_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))hot_step_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef PHASE_METHODS[] = {
    {"__enter__", (PyCFunction)hot_phase_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))hot_phase_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static Py_ssize_t offset_of(PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    Py_ssize_t offset = -1;
    if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type))
        offset = ((PyMemberDescrObject *)found)->d_member->offset;
    else if (found != NULL)
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
    Py_XDECREF(found);
    return offset;
}

static PyObject *descriptors(PyTypeObject *type, PyMethodDef *methods)
{
    PyObject *found = PyDict_New();
    for (; found != NULL && methods->ml_name != NULL; methods++) {
        PyObject *method = PyDescr_NewMethod(type, methods);
        if (method == NULL || PyDict_SetItemString(found, methods->ml_name, method) < 0) Py_CLEAR(found);
        Py_XDECREF(method);
    }
    return found;
}

static int keep(PyObject **place, PyTypeObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL) return -1;
    Py_XSETREF(*place, found);
    return 0;
}

static PyObject *twins(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *collections = PyImport_ImportModule("collections");
    int slot;
    if (collections == NULL) return NULL;
    Deque = (PyTypeObject *)PyObject_GetAttrString(collections, "deque");
    Py_DECREF(collections);
    if (Deque == NULL) return NULL;
    for (slot = 0; slot < RECENT; slot++) {
        Py_CLEAR(recent[slot].layouts);
        Py_CLEAR(recent[slot].names);
        Py_CLEAR(recent[slot].layout);
    }
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyType_Type, &Recorder, &PyType_Type, &Step, &PyType_Type, &Phase)) return NULL;
    Py_INCREF(Recorder);
    Py_INCREF(Step);
    Py_INCREF(Phase);
    for (slot = 0; slot < SLOTS; slot++)
        if ((slots[slot] = offset_of(Recorder, SLOT_NAMES[slot])) < 0) return NULL;
    if ((step_recorder = offset_of(Step, "_recorder")) < 0 || (step_index = offset_of(Step, "index")) < 0 ||
        (step_samples = offset_of(Step, "samples")) < 0 || (phase_recorder = offset_of(Phase, "_recorder")) < 0 ||
        (phase_name = offset_of(Phase, "_name")) < 0 || (phase_foreign = offset_of(Phase, "_foreign")) < 0)
        return NULL;
    if (keep(&python_log, Recorder, "log") < 0 || keep(&python_write, Recorder, "_write") < 0 ||
        keep(&python_phase, Recorder, "phase") < 0 || keep(&python_step, Recorder, "step") < 0 ||
        keep(&python_end, Recorder, "_end_step") < 0 ||
        keep(&python_step_enter, Step, "__enter__") < 0 || keep(&python_phase_enter, Phase, "__enter__") < 0 ||
        keep(&python_phase_exit, Phase, "__exit__") < 0)
        return NULL;
    return Py_BuildValue("(NNN)", descriptors(Recorder, RECORDER_METHODS), descriptors(Step, STEP_METHODS),
                         descriptors(Phase, PHASE_METHODS));
}

static PyObject *set_clock(PyObject *Py_UNUSED(module), PyObject *clock)
{
    Py_XSETREF(test_clock, clock == Py_None ? NULL : Py_NewRef(clock));
    Py_RETURN_NONE;
}

static PyMethodDef FUNCTIONS[] = {
    {"twins", twins, METH_VARARGS, "Return the methods for Recorder, Step and Phase, by name."},
    {"set_clock", set_clock, METH_O, "Go by this function instead of the system's clock; None ends that. For tests."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_hot", "The hot path in C.", -1, FUNCTIONS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void)
{
    text_step = PyUnicode_InternFromString("step");
    text_samples = PyUnicode_InternFromString("samples");
    text_look = PyUnicode_InternFromString("look");
    text_deferred = PyUnicode_InternFromString("_write_deferred");
    if (!text_step || !text_samples || !text_look || !text_deferred) return NULL;
    return PyModule_Create(&MODULE);
}
