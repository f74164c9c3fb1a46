/* The hot path in C: twins of the methods of hotpath.py that a training step calls, on the very same objects.

   Between two of these calls a training step runs through all caches. What a call costs is then not its instructions but
   the memory it touches, and here that is a few lines. Each function does the common case only. Whatever is not plain
   (a new name, a tensor, a full segment, another thread in a write, a run that is off) goes to its twin in Python before
   anything was changed, so there is one place where such cases are thought about.

   A function of C runs to its end before another thread or a signal handler of Python does: while the token of the ring
   is in its place nobody else writes. Built for CPython with a GIL on x86, where stores are seen in their order. */

#include "_state.h"
#include "_clock.h"

#define MOST 128 /* values of a row */
#define HEAD_BYTES 32
#define WORD_HEAD 4
#define WORD_CALLS 8
#define WORD_CALL_NS 9

typedef union { double real; long long whole; } Cell;

static Py_ssize_t step_recorder, step_index, step_samples, phase_recorder, phase_name;
static Py_ssize_t automatic_recorder, automatic_yielded, automatic_open, automatic_marks, automatic_before;
static Py_ssize_t automatic_count, automatic_layouts;
static PyTypeObject *Recorder, *Step, *Phase, *Automatic, *Deque, *seen_type;
static PyObject *python_log, *python_write, *python_phase, *python_step, *python_end;
static PyObject *python_step_enter, *python_phase_enter, *python_phase_exit, *python_note;
static PyObject *test_clock, *text_step, *text_samples, *text_look, *text_deferred;

#define AT(object, offset) (*(PyObject **)((char *)(object) + (offset)))
#define HOT __attribute__((hot)) /* these lie side by side: a step finds them on few pages */
#define COLD __attribute__((cold, noinline))

HOT static long long now_ns(void)
{
    PyObject *told;
    long long value;
    if (__builtin_expect(test_clock == NULL, 1)) return counted_ns();
    told = PyObject_CallNoArgs(test_clock);
    value = told ? PyLong_AsLongLong(told) : 0;
    Py_XDECREF(told);
    return value;
}

static void put(PyObject *object, Py_ssize_t offset, PyObject *value) /* takes the reference */
{
    PyObject *before = AT(object, offset);
    AT(object, offset) = value;
    Py_XDECREF(before);
}

/* Read an exact int; say whether there was one that fits. */
HOT static int whole(PyObject *object, long long *value)
{
    int overflow = 0;
    if (object == NULL || !PyLong_CheckExact(object)) return 0;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return !overflow;
}

/* Read one of Python's own numbers as a double; say whether it was one. */
HOT static int real(PyObject *object, double *value)
{
    if (PyFloat_CheckExact(object)) {
        *value = PyFloat_AS_DOUBLE(object);
        return 1;
    }
    if (!PyLong_CheckExact(object) && !PyBool_Check(object)) return 0;
#if PY_VERSION_HEX < 0x030C0000
    if (Py_SIZE(object) == 0 || Py_SIZE(object) == 1) { /* the usual: no call needed */
        *value = Py_SIZE(object) ? (double)((PyLongObject *)object)->ob_digit[0] : 0.0;
        return 1;
    }
#endif
    *value = PyLong_AsDouble(object);
    if (*value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear(); /* too large: Python says so */
        return 0;
    }
    return 1;
}

/* Return what `threading.get_ident` does: in glibc and musl a thread is named by where its pointer points. */
HOT static unsigned long this_thread(void)
{
    unsigned long thread;
    __asm__("mov %%fs:0, %0" : "=r"(thread));
    return thread;
}

/* Say whether this is a recorder; the type of the last one is known without a look at it. */
HOT static int is_recorder(PyObject *object)
{
    if (Py_TYPE(object) == seen_type) return 1;
    if (!PyObject_TypeCheck(object, Recorder)) return 0;
    Py_XSETREF(seen_type, (PyTypeObject *)Py_NewRef(Py_TYPE(object)));
    return 1;
}

/* Say whether a deque is empty; it keeps its length where every object of variable size does. */
HOT static int is_empty(PyObject *queue) { return queue != NULL && Py_IS_TYPE(queue, Deque) && Py_SIZE(queue) == 0; }

/* Read how a layout of Python's writes a row of so many values of these kinds; say whether it does. */
COLD static int read_layout(PyObject *layout, const char *kinds, Py_ssize_t count, Form *form)
{
    long long size, schema;
    PyObject *bytes;
    if (layout == NULL || !PyTuple_CheckExact(layout) || PyTuple_GET_SIZE(layout) != 5) return 0;
    bytes = PyTuple_GET_ITEM(layout, 4);
    if (!PyBytes_CheckExact(bytes) || PyBytes_GET_SIZE(bytes) != count) return 0;
    if (kinds != NULL && memcmp(PyBytes_AS_STRING(bytes), kinds, (size_t)count)) return 0;
    if (!whole(PyTuple_GET_ITEM(layout, 1), &size) || !whole(PyTuple_GET_ITEM(layout, 2), &schema)) return 0;
    if (size != HEAD_BYTES + 8 * count) return 0;
    form->size = (unsigned int)size;
    form->schema = (unsigned int)schema;
    return 1;
}

/* Return the form whose names lie where these do. A program logs the same literal names again: to compare where they
   lie is cheaper than to look each up, and touches none of them. */
HOT static Form *form_at(Form *forms, PyObject *const *names, Py_ssize_t count, Py_ssize_t salt)
{
    size_t first = (size_t)names[0];
    return &forms[((first >> 4) ^ (first >> 9) ^ (size_t)(count + salt)) % FORMS];
}

HOT static int is_of(const Form *form, PyObject *const *names, Py_ssize_t count)
{
    Py_ssize_t at;
    if (form->count != count) return 0;
    for (at = 0; at < count; at++)
        if (form->names[at] != names[at]) return 0;
    return 1;
}

/* Remember how rows of these names are written, as `layouts` says for `key`; say whether it says so. */
COLD static int learn(Form *form, PyObject *layouts, PyObject *key, const char *kinds, Py_ssize_t cells, Py_ssize_t count)
{
    Form fresh;
    Py_ssize_t at;
    if (key == NULL || !read_layout(PyDict_GetItemWithError(layouts, key), kinds, cells, &fresh)) return 0;
    drop_form(form);
    form->names = count > FEW ? PyMem_New(PyObject *, count) : form->few;
    if (form->names == NULL) return 0;
    for (at = 0; at < count; at++) form->names[at] = Py_NewRef(PyTuple_GET_ITEM(key, at));
    form->size = fresh.size;
    form->schema = fresh.schema;
    form->count = count;
    return 1;
}

/* Do what is due twice a second: rows that came inside another's, and a look at the watcher. */
COLD static int look(PyObject *recorder, long long now)
{
    State *state = (State *)recorder;
    PyObject *when, *next;
    if (!is_empty(state->side)) {
        PyObject *done = PyObject_CallMethodNoArgs(recorder, text_deferred);
        if (done == NULL) return -1;
        Py_DECREF(done);
    }
    if ((when = PyLong_FromLongLong(now)) == NULL) return -1;
    next = PyObject_CallMethodObjArgs(state->intake, text_look, state->words, when, NULL);
    Py_DECREF(when);
    if (next == NULL) return -1;
    if (!whole(next, &state->due)) state->due = now;
    Py_DECREF(next);
    return 0;
}

/* Look at the world beside the training if it is time to. */
HOT static int look_if_due(PyObject *recorder, long long now)
{
    return now > ((State *)recorder)->due ? look(recorder, now) : 0;
}

/* Write a row at a step; say whether that was possible. If not nothing was changed, and Python has to do it. */
HOT static int write_row(PyObject *recorder, const Form *form, long long now, long long at, const Cell *row, Py_ssize_t count)
{
    State *state = (State *)recorder;
    PyObject *tokens = state->tokens;
    long long sequence = state->sequence, place = state->head + state->shift;
    unsigned int size = form->size;
    unsigned long long *words;
    char *target;
    Cell *cell;
    if (!state->recording || state->memory == NULL || !PyList_CheckExact(tokens) || PyList_GET_SIZE(tokens) != 1) return 0;
    if (state->head + size > state->limit || place < 4096 || place + size > state->bytes) return 0;
    target = state->memory + place;
    memcpy(target, &size, 4);
    memcpy(target + 4, &form->schema, 4);
    memcpy(target + 8, &sequence, 8);
    memcpy(target + 16, &now, 8);
    memcpy(target + 24, &at, 8);
    for (cell = (Cell *)(target + HEAD_BYTES); count > 0; count--) *cell++ = *row++;
    words = (unsigned long long *)state->memory;
    state->head += size;
    state->sequence = sequence + 1;
    __atomic_store_n(&words[WORD_HEAD], (unsigned long long)state->head, __ATOMIC_RELEASE);
    if ((sequence & 63) == 63) {
        words[WORD_CALLS] += 1;
        words[WORD_CALL_NS] += (unsigned long long)(now_ns() - now);
    }
    return 1;
}

/* Say whether a keyword is this one: mostly it is the very same text. */
HOT static int is_word(PyObject *word, PyObject *text) { return word == text || PyUnicode_Compare(word, text) == 0; }

/* Call the twin of a method. */
COLD static PyObject *in_python(PyObject *twin, PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
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

HOT static PyObject *hot_log(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char REALS[MOST + 1] = {[0 ... MOST - 1] = 'd'};
    State *state = (State *)self;
    long long now = now_ns(), step = 0;
    PyObject *values, *given = NULL, *name, *value, *seen[MOST];
    Py_ssize_t size, place = 0, at = 0;
    Form *form;
    Cell row[MOST];
    if (count < 1 || count > 2 || !PyDict_CheckExact(args[0]) || state->awaiting) goto python;
    if (names != NULL && (count != 1 || PyTuple_GET_SIZE(names) != 1 || !is_word(PyTuple_GET_ITEM(names, 0), text_step)))
        goto python;
    if (names != NULL || count == 2) { /* the step, by name or not, is the second value */
        given = args[1] == Py_None ? NULL : args[1];
        if (given != NULL && !whole(given, &step)) goto python;
    }
    values = args[0];
    size = PyDict_GET_SIZE(values);
    if (size == 0 || size > MOST) goto python;
    while (PyDict_Next(values, &place, &name, &value)) {
        seen[at] = name;
        if (!real(value, &row[at++].real)) goto python;
    }
    form = form_at(state->rows, seen, size, 0);
    if (!is_of(form, seen, size)) {
        PyObject *key = PySequence_Tuple(values);
        int learnt = learn(form, state->layouts, key, REALS, size, size);
        Py_XDECREF(key);
        if (!learnt) goto python;
    }
    if (write_row(self, form, now, given ? step : state->index, row, size)) {
        if (given == NULL && state->counting) state->index++;
        return look_if_due(self, now) < 0 ? NULL : Py_NewRef(Py_None);
    }
python:
    PyErr_Clear(); /* a key that cannot be hashed */
    return in_python(python_log, self, args, count, names);
}

static PyObject *hot_write(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    State *state = (State *)self;
    const char *kinds;
    long long now, step = 0;
    Form form;
    Cell row[MOST];
    Py_ssize_t size, at;
    if (count != 4 || !PyTuple_CheckExact(args[3]) || !whole(args[1], &now)) goto python;
    size = PyTuple_GET_SIZE(args[3]);
    if (size > MOST || !read_layout(args[0], NULL, size, &form)) goto python;
    if (args[2] != Py_None && !whole(args[2], &step)) goto python;
    kinds = PyBytes_AS_STRING(PyTuple_GET_ITEM(args[0], 4));
    for (at = 0; at < size; at++) {
        PyObject *value = PyTuple_GET_ITEM(args[3], at);
        if (kinds[at] == 'q' ? !whole(value, &row[at].whole) : !real(value, &row[at].real)) goto python;
    }
    if (write_row(self, &form, now, args[2] == Py_None ? state->index : step, row, size)) {
        if (args[2] == Py_None && state->counting) state->index++;
        return look_if_due(self, now) < 0 ? NULL : Py_NewRef(Py_None);
    }
python:
    return in_python(python_write, self, args, count, NULL);
}

/* Give a context a class of its own, whose `__enter__` and `__exit__` know it: as they are no descriptors, `with` makes
   no method objects of them, which the collector would have to hear of between cold neighbours. */
COLD static void bind(PyObject *context)
{
    PyObject *enter = PyObject_GetAttrString(context, "__enter__"), *leave = PyObject_GetAttrString(context, "__exit__");
    PyObject *own = NULL;
    if (enter != NULL && leave != NULL)
        own = PyObject_CallFunction((PyObject *)&PyType_Type, "s(O){s:(),s:O,s:O}", Py_TYPE(context)->tp_name,
                                    Py_TYPE(context), "__slots__", "__enter__", enter, "__exit__", leave);
    if (own == NULL || PyObject_SetAttrString(context, "__class__", own) < 0) PyErr_Clear(); /* it stays as it is */
    Py_XDECREF(enter);
    Py_XDECREF(leave);
    Py_XDECREF(own);
}

HOT static PyObject *hot_phase(PyObject *self, PyObject *name)
{
    State *state = (State *)self;
    PyObject *phases = state->phases_by_name, *found = NULL;
    int at;
    for (at = 0; at < KNOWN_PHASES && state->known[at].name != NULL; at++)
        if (state->known[at].name == name) return Py_NewRef(state->known[at].phase);
    if (PyUnicode_CheckExact(name) && PyDict_CheckExact(phases)) found = PyDict_GetItemWithError(phases, name);
    if (found == NULL) {
        PyErr_Clear();
        return in_python(python_phase, self, &name, 1, NULL);
    }
    if (at < KNOWN_PHASES) {
        if (Py_IS_TYPE(found, Phase)) bind(found);
        state->known[at].name = Py_NewRef(name);
        state->known[at].phase = Py_NewRef(found);
    }
    return Py_NewRef(found);
}

HOT static PyObject *hot_step(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    State *state = (State *)self;
    PyObject *step = state->step, *samples = Py_None;
    if (step == NULL || count > 1) goto python;
    if (step != state->known_step) {
        if (!PyObject_TypeCheck(step, Step)) goto python;
        if (Py_IS_TYPE(step, Step)) bind(step);
        Py_XSETREF(state->known_step, Py_NewRef(step));
    }
    if (names != NULL) {
        if (count || PyTuple_GET_SIZE(names) != 1 || !is_word(PyTuple_GET_ITEM(names, 0), text_samples)) goto python;
        samples = args[0];
    } else if (count) {
        samples = args[0];
    }
    if (AT(step, step_samples) != samples) put(step, step_samples, Py_NewRef(samples));
    if (AT(step, step_index) != Py_None) put(step, step_index, Py_NewRef(Py_None));
    return Py_NewRef(step);
python:
    return in_python(python_step, self, args, count, names);
}

/* Add the time since the last mark to a phase, and mark now. */
HOT static int charge(State *state, PyObject *name, long long now)
{
    Part *part = part_of((Spent *)state->spent, name);
    if (part == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (state->mark) part->elapsed += now - state->mark;
    state->mark = now;
    return 0;
}

/* Remember how the row of a step with these phases is written. */
COLD static int learn_step(PyObject *recorder, Form *form, PyObject *const *names, Py_ssize_t size, int sampled)
{
    char kinds[MOST];
    PyObject *key = PyTuple_New(size + 1);
    Py_ssize_t at;
    int learnt;
    if (key == NULL) return 0;
    for (at = 0; at < size; at++) PyTuple_SET_ITEM(key, at, Py_NewRef(names[at]));
    PyTuple_SET_ITEM(key, size, Py_NewRef(sampled ? Py_True : Py_False));
    memset(kinds, 'q', sizeof kinds);
    if (sampled) kinds[size + 1] = 'd';
    learnt = learn(form, ((State *)recorder)->step_layouts, key, kinds, size + 1 + sampled, size + 1);
    Py_DECREF(key);
    return learnt;
}

HOT static int end_step(PyObject *recorder, PyObject *samples)
{
    State *state = (State *)recorder;
    Spent *spent = (Spent *)state->spent;
    PyObject *seen[MOST], *done;
    long long now = now_ns(), total = 0;
    int sampled = samples != Py_None;
    Py_ssize_t at, size;
    Form *form;
    Cell row[MOST];
    if (charge(state, state->current, now) < 0) return -1;
    size = spent->count;
    if (size + 2 > MOST || (sampled && !real(samples, &row[1 + size].real))) goto python;
    for (at = 0; at < size; at++) {
        seen[at] = spent->parts[at].name;
        total += row[1 + at].whole = spent->parts[at].elapsed;
    }
    row[0].whole = total;
    seen[size] = sampled ? Py_True : Py_False;
    form = form_at(state->steps, seen, size, sampled);
    if (!is_of(form, seen, size + 1) && !learn_step(recorder, form, seen, size, sampled)) goto python;
    if (write_row(recorder, form, now, state->index, row, 1 + size + sampled)) {
        spent->count = 0;
        return look_if_due(recorder, now);
    }
python:
    PyErr_Clear();
    done = in_python(python_end, recorder, &samples, 1, NULL); /* it charges the time since, and marks again */
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *hot_end_step(PyObject *self, PyObject *samples)
{
    return end_step(self, samples) < 0 ? NULL : Py_NewRef(Py_None);
}

HOT static PyObject *hot_step_enter(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    State *state = (State *)AT(self, step_recorder);
    if (AT(self, step_index) != Py_None || !is_recorder((PyObject *)state))
        return in_python(python_step_enter, self, NULL, 0, NULL);
    state->thread = this_thread();
    if (!state->mark) state->mark = now_ns();
    state->index = state->counting ? 0 : state->index + 1;
    state->counting = 0;
    return PyLong_FromLongLong(state->index);
}

HOT static PyObject *hot_step_exit(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count))
{
    PyObject *recorder = AT(self, step_recorder), *samples = AT(self, step_samples);
    int failed;
    if (!is_recorder(recorder)) return in_python(python_end, recorder, &samples, 1, NULL);
    Py_INCREF(samples);
    failed = end_step(recorder, samples);
    Py_DECREF(samples);
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

/* Open a phase: the one before goes onto the stack, with its reference. */
HOT static int push(State *state, PyObject *name)
{
    PyListObject *stack = (PyListObject *)state->stack;
    Py_ssize_t depth = PyList_GET_SIZE(stack);
    if (depth < stack->allocated) {
        PyList_SET_ITEM(stack, depth, state->current);
        Py_SET_SIZE(stack, depth + 1);
    } else {
        if (PyList_Append(state->stack, state->current) < 0) return -1;
        Py_DECREF(state->current);
    }
    state->current = Py_NewRef(name);
    return 0;
}

/* Close it: the one before comes back. */
HOT static void pop(State *state, Py_ssize_t depth)
{
    PyObject *ended = state->current;
    state->current = PyList_GET_ITEM(state->stack, depth - 1);
    Py_SET_SIZE(state->stack, depth - 1);
    Py_DECREF(ended);
}

HOT static PyObject *hot_phase_enter(PyObject *self, PyObject *Py_UNUSED(nothing))
{
    PyObject *recorder = AT(self, phase_recorder);
    State *state = (State *)recorder;
    if (!is_recorder(recorder) || state->thread != this_thread())
        return in_python(python_phase_enter, self, NULL, 0, NULL);
    if (charge(state, state->current, now_ns()) < 0 || push(state, AT(self, phase_name)) < 0) return NULL;
    Py_RETURN_NONE;
}

HOT static PyObject *hot_phase_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    PyObject *recorder = AT(self, phase_recorder);
    State *state = (State *)recorder;
    if (!is_recorder(recorder) || state->shared || !PyList_GET_SIZE(state->stack))
        return in_python(python_phase_exit, self, args, count, NULL);
    if (charge(state, AT(self, phase_name), now_ns()) < 0) return NULL;
    pop(state, PyList_GET_SIZE(state->stack));
    Py_RETURN_NONE;
}

/* Return how a step without phases is written, once Python has declared it. */
static Form *bare_form(PyObject *self, State *state, int sampled)
{
    Form *form = &state->bare[sampled];
    PyObject *key, *layout;
    if (form->size) return form;
    if ((key = Py_BuildValue("(iO)", 0, sampled ? Py_True : Py_False)) == NULL) return NULL;
    layout = PyDict_GetItemWithError(AT(self, automatic_layouts), key);
    Py_DECREF(key);
    return read_layout(layout, "qd", 1 + sampled, form) ? form : NULL;
}

/* End a step that nobody measured, and begin the next: all that our hooks do in most steps. */
HOT static PyObject *hot_note(PyObject *self, PyObject *samples)
{
    PyObject *recorder = AT(self, automatic_recorder), *count;
    State *state = (State *)recorder;
    int sampled = samples != Py_None;
    long long now, steps;
    Form *form;
    Cell row[2];
    if (!is_recorder(recorder) || AT(self, automatic_yielded) != Py_False || AT(self, automatic_open) != Py_True) goto python;
    if (((Spent *)state->spent)->count || PyList_GET_SIZE(state->stack)) goto python;
    if (PyList_GET_SIZE(AT(self, automatic_marks)) || !whole(AT(self, automatic_count), &steps)) goto python;
    if ((sampled && !real(samples, &row[1].real)) || (form = bare_form(self, state, sampled)) == NULL) goto python;
    now = now_ns();
    row[0].whole = now - state->mark;
    if ((count = PyLong_FromLongLong(steps + 1)) == NULL) return NULL;
    if (!write_row(recorder, form, now, state->index, row, 1 + sampled)) {
        Py_DECREF(count);
        goto python;
    }
    put(self, automatic_count, count);
    if (AT(self, automatic_before) != Py_None) put(self, automatic_before, Py_NewRef(Py_None));
    state->mark = now;
    state->index++;
    return look_if_due(recorder, now) < 0 ? NULL : Py_NewRef(Py_True);
python:
    PyErr_Clear();
    return in_python(python_note, self, &samples, 1, NULL);
}

static PyMethodDef AUTOMATIC_METHODS[] = {
    {"note", (PyCFunction)hot_note, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
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

#include "_quiet.h"

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
    if (collections == NULL) return NULL;
    Deque = (PyTypeObject *)PyObject_GetAttrString(collections, "deque");
    Py_DECREF(collections);
    if (Deque == NULL) return NULL;
    if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyType_Type, &Recorder, &PyType_Type, &Step, &PyType_Type, &Phase,
                          &PyType_Type, &Automatic))
        return NULL;
    Py_INCREF(Automatic);
    Py_INCREF(Recorder);
    Py_INCREF(Step);
    Py_INCREF(Phase);
    if ((step_recorder = offset_of(Step, "_recorder")) < 0 || (step_index = offset_of(Step, "index")) < 0 ||
        (step_samples = offset_of(Step, "samples")) < 0 || (phase_recorder = offset_of(Phase, "_recorder")) < 0 ||
        (phase_name = offset_of(Phase, "_name")) < 0 || (automatic_recorder = offset_of(Automatic, "_recorder")) < 0 ||
        (automatic_yielded = offset_of(Automatic, "yielded")) < 0 ||
        (automatic_open = offset_of(Automatic, "_is_open")) < 0 || (automatic_marks = offset_of(Automatic, "marks")) < 0 ||
        (automatic_before = offset_of(Automatic, "_before")) < 0 ||
        (automatic_count = offset_of(Automatic, "count")) < 0 || (automatic_layouts = offset_of(Automatic, "_layouts")) < 0)
        return NULL;
    if (keep(&python_log, Recorder, "log") < 0 || keep(&python_write, Recorder, "_write") < 0 ||
        keep(&python_phase, Recorder, "phase") < 0 || keep(&python_step, Recorder, "step") < 0 ||
        keep(&python_end, Recorder, "_end_step") < 0 ||
        keep(&python_step_enter, Step, "__enter__") < 0 || keep(&python_phase_enter, Phase, "__enter__") < 0 ||
        keep(&python_phase_exit, Phase, "__exit__") < 0 || keep(&python_note, Automatic, "note") < 0)
        return NULL;
    return Py_BuildValue("(NNNN)", descriptors(Recorder, RECORDER_METHODS), descriptors(Step, STEP_METHODS),
                         descriptors(Phase, PHASE_METHODS), descriptors(Automatic, AUTOMATIC_METHODS));
}

static PyObject *set_clock(PyObject *Py_UNUSED(module), PyObject *clock)
{
    Py_XSETREF(test_clock, clock == Py_None ? NULL : Py_NewRef(clock));
    Py_RETURN_NONE;
}

static PyObject *trust_counter(PyObject *Py_UNUSED(module), PyObject *trusted)
{
    memset(&counter, 0, sizeof counter);
    counter.trusted = trusted == Py_True;
    Py_RETURN_NONE;
}

static PyObject *read_clock(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    return PyLong_FromLongLong(now_ns());
}

/* Say at which rate the counter is believed after these looks at it and the clock. */
static PyObject *rate_after(PyObject *Py_UNUSED(module), PyObject *looks)
{
    Counter kept = counter;
    PyObject *all = PySequence_Fast(looks, "looks are pairs"), *rate = NULL;
    Py_ssize_t at;
    if (all == NULL) return NULL;
    memset(&counter, 0, sizeof counter);
    for (at = 0; at < PySequence_Fast_GET_SIZE(all); at++) {
        long long ticks, ns;
        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(all, at), "LL", &ticks, &ns)) goto out;
        anchor((unsigned long long)ticks, ns);
    }
    rate = PyFloat_FromDouble(counter.window ? (double)counter.scale / 4294967296.0 : 0.0);
out:
    counter = kept;
    Py_DECREF(all);
    return rate;
}

static PyMethodDef FUNCTIONS[] = {
    {"rate_after", rate_after, METH_O, "Return ns per tick after looks (ticks, ns), 0 if it is not believed. For tests."},
    {"trust_counter", trust_counter, METH_O, "Say whether the processor's counter may be read instead of the clock."},
    {"read_clock", read_clock, METH_NOARGS, "Return the time as the hot path reads it, in ns (monotonic)."},
    {"twins", twins, METH_VARARGS, "Return the methods for Recorder, Step, Phase and AutomaticSteps, by name."},
    {"passing", passing, METH_VARARGS, "Return a function that is the original while no marks are made, else its twin."},
    {"stepped", stepped, METH_VARARGS, "Return the hook of optimizers for steps that are only counted."},
    {"fetching", fetching, METH_VARARGS, "Return the `__next__` of loaders for steps that are only counted."},
    {"set_clock", set_clock, METH_O, "Go by this function instead of the system's clock; None ends that. For tests."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_hot", "The hot path in C.", -1, FUNCTIONS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void)
{
    PyObject *module;
    text_step = PyUnicode_InternFromString("step");
    text_samples = PyUnicode_InternFromString("samples");
    text_look = PyUnicode_InternFromString("look");
    text_deferred = PyUnicode_InternFromString("_write_deferred");
    if (!text_step || !text_samples || !text_look || !text_deferred) return NULL;
    if (ready_hooks() < 0) return NULL;
    if (PyType_Ready(&StateType) < 0 || PyType_Ready(&SpentType) < 0 || (module = PyModule_Create(&MODULE)) == NULL) return NULL;
    if (PyModule_AddObjectRef(module, "State", (PyObject *)&StateType) < 0 ||
        PyModule_AddObjectRef(module, "Spent", (PyObject *)&SpentType) < 0)
        Py_CLEAR(module);
    return module;
}
