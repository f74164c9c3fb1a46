/* The state of the hot path, unboxed: one stretch of memory instead of a number object each.

   `State` is the base of RingPosition in Python, whose methods see its members as plain attributes. `Spent` is the
   mapping from phases to nanoseconds of the step under way. Its names are interned: to compare them is to compare
   where they lie, and none is touched. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#define FEW 12 /* phases of a step, and names of a row, that need no memory of their own */
#define FORMS 8
#define KNOWN_PHASES 12

/* How rows with these names are written. */
typedef struct {
    Py_ssize_t count;
    unsigned int size, schema;
    PyObject **names, *few[FEW];
} Form;

typedef struct {
    PyObject_HEAD
    long long head, limit, shift, sequence, index, mark, due;
    unsigned long thread;
    char recording, counting, awaiting, shared;
    char *memory;
    Py_ssize_t bytes;
    PyObject *tokens, *current, *stack, *spent, *step, *known_step;
    PyObject *layouts, *step_layouts, *phases_by_name, *side, *intake, *words;
    struct { PyObject *name, *phase; } known[KNOWN_PHASES];
    Form rows[FORMS], steps[FORMS], bare[2];
    Py_buffer view;
} State;

static PyMemberDef STATE_MEMBERS[] = {
    {"_head", T_LONGLONG, offsetof(State, head), 0, NULL},
    {"_limit", T_LONGLONG, offsetof(State, limit), 0, NULL},
    {"_shift", T_LONGLONG, offsetof(State, shift), 0, NULL},
    {"_sequence", T_LONGLONG, offsetof(State, sequence), 0, NULL},
    {"_index", T_LONGLONG, offsetof(State, index), 0, NULL},
    {"_mark", T_LONGLONG, offsetof(State, mark), 0, NULL},
    {"_due", T_LONGLONG, offsetof(State, due), 0, NULL},
    {"_thread", T_ULONG, offsetof(State, thread), 0, NULL},
    {"recording", T_BOOL, offsetof(State, recording), 0, NULL},
    {"_counting", T_BOOL, offsetof(State, counting), 0, NULL},
    {"_awaiting", T_BOOL, offsetof(State, awaiting), 0, NULL},
    {"_shared", T_BOOL, offsetof(State, shared), 0, NULL},
    {"_tokens", T_OBJECT_EX, offsetof(State, tokens), 0, NULL},
    {"_current", T_OBJECT_EX, offsetof(State, current), 0, NULL},
    {"_stack", T_OBJECT_EX, offsetof(State, stack), 0, NULL},
    {"_spent", T_OBJECT_EX, offsetof(State, spent), 0, NULL},
    {"_step", T_OBJECT_EX, offsetof(State, step), 0, NULL},
    {"_layouts", T_OBJECT_EX, offsetof(State, layouts), 0, NULL},
    {"_step_layouts", T_OBJECT_EX, offsetof(State, step_layouts), 0, NULL},
    {"_phases", T_OBJECT_EX, offsetof(State, phases_by_name), 0, NULL},
    {"_side", T_OBJECT_EX, offsetof(State, side), 0, NULL},
    {"_intake", T_OBJECT_EX, offsetof(State, intake), 0, NULL},
    {"_words", T_OBJECT_EX, offsetof(State, words), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* The objects that it holds, but for text. */
static PyObject **held(State *state, int at)
{
    PyObject **objects[] = {&state->tokens, &state->stack, &state->spent, &state->step, &state->known_step, &state->layouts,
        &state->step_layouts, &state->phases_by_name, &state->side, &state->intake, &state->words};
    const int others = sizeof objects / sizeof *objects;
    return at < others ? objects[at] : at < others + KNOWN_PHASES ? &state->known[at - others].phase : NULL;
}

static void drop_form(Form *form)
{
    Py_ssize_t at, count = form->count;
    form->count = 0;
    for (at = 0; at < count; at++) Py_DECREF(form->names[at]);
    if (count > FEW) PyMem_Free(form->names);
}

static int state_traverse(PyObject *self, visitproc visit, void *arg)
{
    State *state = (State *)self;
    PyObject **object;
    int at;
    for (at = 0; (object = held(state, at)) != NULL; at++) Py_VISIT(*object);
    return 0;
}

static int state_clear(PyObject *self)
{
    State *state = (State *)self;
    PyObject **object;
    int at;
    for (at = 0; (object = held(state, at)) != NULL; at++) Py_CLEAR(*object);
    for (at = 0; at < KNOWN_PHASES; at++) Py_CLEAR(state->known[at].name);
    Py_CLEAR(state->current);
    for (at = 0; at < FORMS; at++) {
        drop_form(&state->rows[at]);
        drop_form(&state->steps[at]);
    }
    return 0;
}

static void let_go(State *state)
{
    state->memory = NULL;
    if (state->view.obj != NULL) PyBuffer_Release(&state->view);
}

static void state_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    let_go((State *)self);
    state_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* Hold the memory of a ring; None lets it go. */
static PyObject *state_hold(PyObject *self, PyObject *memory)
{
    State *state = (State *)self;
    let_go(state);
    if (memory == Py_None) Py_RETURN_NONE;
    if (PyObject_GetBuffer(memory, &state->view, PyBUF_WRITABLE) < 0) return NULL;
    state->memory = state->view.buf;
    state->bytes = state->view.len;
    Py_RETURN_NONE;
}

static PyMethodDef STATE_METHODS[] = {
    {"_hold", state_hold, METH_O, "Hold the memory of a ring until called with None."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject StateType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.recorder._hot.State",
    .tp_doc = "The numbers of the hot path, unboxed.",
    .tp_basicsize = sizeof(State),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = state_dealloc,
    .tp_traverse = state_traverse,
    .tp_clear = state_clear,
    .tp_members = STATE_MEMBERS,
    .tp_methods = STATE_METHODS,
};

/* Names stay in their places when the step ends: the next one has the same, and adds no reference. */
typedef struct { PyObject *name; long long elapsed; } Part;
typedef struct {
    PyObject_HEAD
    Py_ssize_t count, kept, room;
    Part *parts, few[FEW];
} Spent;

/* Return where a phase's time is counted, made if it is new; NULL without memory. `name` is interned. */
__attribute__((hot)) static Part *part_of(Spent *spent, PyObject *name)
{
    Py_ssize_t at;
    Part *part;
    for (at = 0; at < spent->count; at++)
        if (spent->parts[at].name == name) return &spent->parts[at];
    if (at == spent->room) {
        Part *parts = PyMem_New(Part, 2 * at);
        if (parts == NULL) return NULL;
        memcpy(parts, spent->parts, (size_t)at * sizeof(Part));
        if (spent->parts != spent->few) PyMem_Free(spent->parts);
        spent->parts = parts;
        spent->room = 2 * at;
    }
    part = &spent->parts[at];
    if (at == spent->kept) {
        part->name = Py_NewRef(name);
        spent->kept++;
    } else if (part->name != name) {
        Py_SETREF(part->name, Py_NewRef(name));
    }
    part->elapsed = 0;
    spent->count++;
    return part;
}

static PyObject *spent_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    Spent *spent = (Spent *)type->tp_alloc(type, 0);
    if (spent != NULL) {
        spent->parts = spent->few;
        spent->room = FEW;
    }
    return (PyObject *)spent;
}

static void spent_dealloc(PyObject *self)
{
    Spent *spent = (Spent *)self;
    Py_ssize_t at;
    for (at = 0; at < spent->kept; at++) Py_DECREF(spent->parts[at].name);
    if (spent->parts != spent->few) PyMem_Free(spent->parts);
    Py_TYPE(self)->tp_free(self);
}

static Py_ssize_t spent_length(PyObject *self) { return ((Spent *)self)->count; }

static Part *asked(PyObject *self, PyObject *name)
{
    Part *part;
    if (!PyUnicode_CheckExact(name)) {
        PyErr_SetString(PyExc_TypeError, "a phase has a str for its name");
        return NULL;
    }
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    part = part_of((Spent *)self, name);
    Py_DECREF(name);
    if (part == NULL && !PyErr_Occurred()) PyErr_NoMemory();
    return part;
}

static PyObject *spent_get(PyObject *self, PyObject *name)
{
    Part *part = asked(self, name);
    return part ? PyLong_FromLongLong(part->elapsed) : NULL;
}

static int spent_set(PyObject *self, PyObject *name, PyObject *value)
{
    long long elapsed;
    Part *part;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "the time of a phase cannot be taken away; clear() ends the step");
        return -1;
    }
    elapsed = PyLong_AsLongLong(value);
    if ((elapsed == -1 && PyErr_Occurred()) || (part = asked(self, name)) == NULL) return -1;
    part->elapsed = elapsed;
    return 0;
}

static PyObject *spent_names(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    Spent *spent = (Spent *)self;
    PyObject *names = PyTuple_New(spent->count);
    Py_ssize_t at;
    for (at = 0; names != NULL && at < spent->count; at++) PyTuple_SET_ITEM(names, at, Py_NewRef(spent->parts[at].name));
    return names;
}

static PyObject *spent_values(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    Spent *spent = (Spent *)self;
    PyObject *values = PyTuple_New(spent->count);
    Py_ssize_t at;
    for (at = 0; values != NULL && at < spent->count; at++) {
        PyObject *value = PyLong_FromLongLong(spent->parts[at].elapsed);
        if (value == NULL) Py_CLEAR(values);
        else PyTuple_SET_ITEM(values, at, value);
    }
    return values;
}

static PyObject *spent_iter(PyObject *self)
{
    PyObject *names = spent_names(self, NULL), *iterator = names ? PyObject_GetIter(names) : NULL;
    Py_XDECREF(names);
    return iterator;
}

static PyObject *spent_clear(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    ((Spent *)self)->count = 0;
    Py_RETURN_NONE;
}

static PyMethodDef SPENT_METHODS[] = {
    {"keys", spent_names, METH_NOARGS, "Return the phases, in the order of their beginning."},
    {"values", spent_values, METH_NOARGS, "Return their nanoseconds."},
    {"clear", spent_clear, METH_NOARGS, "Start again."},
    {NULL, NULL, 0, NULL},
};
static PyMappingMethods SPENT_MAPPING = {spent_length, spent_get, spent_set};
static PyTypeObject SpentType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.recorder._hot.Spent",
    .tp_doc = "Nanoseconds by phase of the step under way; a phase that has none yet has 0.",
    .tp_basicsize = sizeof(Spent),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = spent_new,
    .tp_dealloc = spent_dealloc,
    .tp_as_mapping = &SPENT_MAPPING,
    .tp_iter = spent_iter,
    .tp_methods = SPENT_METHODS,
};
