/* The hooks of torch that are called in steps which nobody measures: most steps of a long training.

   Each is the twin of a function in Python (in data.py and optimizers.py of integrations/torch) on the very same
   objects, and passes to it whatever is not plain. */

enum { ORIGINAL, TWIN, TIMELINE, KEEPER, STEPS, LOADERS, TENSOR, ENABLED, PARTS };

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *dict, *parts[PARTS];
} Hook;

static Py_ssize_t timeline_fast, timeline_hushed, timeline_left, timeline_thread, timeline_keeper, timeline_steps;
static Py_ssize_t keeper_batches, keeper_before, keeper_fed, keeper_samples, keeper_stepped, keeper_until;
static Py_ssize_t loaders_iterator, loaders_slots;
static PyObject *text_shape, *text_count, *text_end_fetch;

static int hook_traverse(PyObject *self, visitproc visit, void *arg)
{
    Hook *hook = (Hook *)self;
    int at;
    Py_VISIT(hook->dict);
    for (at = 0; at < PARTS; at++) Py_VISIT(hook->parts[at]);
    return 0;
}

static int hook_clear(PyObject *self)
{
    Hook *hook = (Hook *)self;
    int at;
    Py_CLEAR(hook->dict);
    for (at = 0; at < PARTS; at++) Py_CLEAR(hook->parts[at]);
    return 0;
}

static void hook_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    hook_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *hook_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyGetSetDef HOOK_MEMBERS[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject HookType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stepscope.recorder._hot.Hook",
    .tp_doc = "A function in place of one of torch's.",
    .tp_basicsize = sizeof(Hook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Hook, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = hook_get,
    .tp_dictoffset = offsetof(Hook, dict),
    .tp_getset = HOOK_MEMBERS,
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_traverse = hook_traverse,
    .tp_clear = hook_clear,
    .tp_dealloc = hook_dealloc,
};

/* While no marks are made, be the original. */
HOT static PyObject *call_passing(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    PyObject **parts = ((Hook *)self)->parts;
    PyObject *called = AT(parts[TIMELINE], timeline_fast) == Py_True ? parts[TWIN] : parts[ORIGINAL];
    return PyObject_Vectorcall(called, args, count & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}

/* Hear that an optimizer has stepped. */
HOT static PyObject *call_stepped(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    PyObject **parts = ((Hook *)self)->parts, *keeper = parts[KEEPER];
    if (AT(parts[TIMELINE], timeline_hushed) != Py_True || AT(keeper, keeper_fed) != Py_True)
        return PyObject_Vectorcall(parts[TWIN], args, count & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
    if (AT(keeper, keeper_stepped) != Py_True) put(keeper, keeper_stepped, Py_NewRef(Py_True));
    Py_RETURN_NONE;
}

/* Say whether a stretch of steps goes on that are only counted, with this iterator, in this thread. */
HOT static int is_hushed(PyObject **parts, PyObject *iterator)
{
    PyObject *timeline = parts[TIMELINE], *known = AT(parts[LOADERS], loaders_iterator), *enabled;
    if (AT(timeline, timeline_hushed) != Py_True || AT(timeline, timeline_left) != Py_None) return 0;
    if (!PyLong_CheckExact(known) || PyLong_AsVoidPtr(known) != (void *)iterator) return 0;
    if (PyLong_AsUnsignedLong(AT(timeline, timeline_thread)) != this_thread()) return 0;
    if ((enabled = PyObject_CallNoArgs(parts[ENABLED])) == NULL) return 0;
    Py_DECREF(enabled); /* True or False, which stay */
    return enabled == Py_True;
}

/* End the step that an optimizer has taken; say whether it was one of those that are only counted. */
HOT static int close_step(PyObject **parts)
{
    PyObject *keeper = parts[KEEPER], *noted, *until;
    long long left;
    if (!whole(AT(keeper, keeper_until), &left) || left < 2) return 0;
    if ((noted = hot_note(parts[STEPS], AT(keeper, keeper_samples))) == NULL) return 0;
    Py_DECREF(noted);
    if (noted != Py_True || (until = PyLong_FromLongLong(left - 1)) == NULL) return 0;
    put(keeper, keeper_until, until);
    put(keeper, keeper_samples, Py_NewRef(Py_None));
    put(keeper, keeper_stepped, Py_NewRef(Py_False));
    put(keeper, keeper_batches, PyLong_FromLong(0));
    return 1;
}

/* Count the samples of a batch that begins with a tensor; say whether it does. */
HOT static int count_batch(PyObject **parts, PyObject *batch)
{
    PyObject *first = batch, *keeper = parts[KEEPER], *before = AT(keeper, keeper_samples), *shape, *sum = NULL;
    long long batches;
    if (AT(parts[LOADERS], loaders_slots) != Py_None || !whole(AT(keeper, keeper_batches), &batches)) return 0;
    while ((PyTuple_CheckExact(first) && PyTuple_GET_SIZE(first)) || (PyList_CheckExact(first) && PyList_GET_SIZE(first)))
        first = PyTuple_CheckExact(first) ? PyTuple_GET_ITEM(first, 0) : PyList_GET_ITEM(first, 0);
    if (!Py_IS_TYPE(first, (PyTypeObject *)parts[TENSOR]) || (shape = PyObject_GetAttr(first, text_shape)) == NULL) return 0;
    if (PyTuple_Check(shape) && PyTuple_GET_SIZE(shape)) {
        PyObject *size = PyTuple_GET_ITEM(shape, 0);
        if (PyLong_CheckExact(size)) sum = before == Py_None ? Py_NewRef(size) : PyNumber_Add(before, size);
    }
    Py_DECREF(shape);
    if (sum == NULL) return 0;
    put(keeper, keeper_batches, PyLong_FromLongLong(batches + 1));
    put(keeper, keeper_before, Py_NewRef(before));
    put(keeper, keeper_samples, sum);
    return 1;
}

/* Tell the loaders that a fetch has ended with an error, which goes on. */
static PyObject *end_fetch(PyObject *loaders)
{
    PyObject *type, *value, *trace, *done;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    done = PyObject_CallMethodOneArg(loaders, text_end_fetch, value);
    if (done == NULL) PyErr_Clear(); /* the program's own error is the one that counts */
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
    return NULL;
}

/* Fetch a batch. */
HOT static PyObject *call_fetching(PyObject *self, PyObject *const *args, size_t count, PyObject *names)
{
    PyObject **parts = ((Hook *)self)->parts, *keeper = parts[KEEPER], *batch, *done;
    if ((count & ~PY_VECTORCALL_ARGUMENTS_OFFSET) != 1 || names != NULL || !is_hushed(parts, args[0])) goto python;
    if (AT(keeper, keeper_stepped) == Py_True && !close_step(parts)) goto python;
    if (AT(keeper, keeper_fed) != Py_True) put(keeper, keeper_fed, Py_NewRef(Py_True));
    if ((batch = PyObject_CallOneArg(parts[ORIGINAL], args[0])) == NULL) return end_fetch(parts[LOADERS]);
    if (!count_batch(parts, batch)) {
        PyErr_Clear();
        if ((done = PyObject_CallMethodOneArg(parts[LOADERS], text_count, batch)) == NULL) Py_CLEAR(batch);
        Py_XDECREF(done);
    }
    return batch;
python:
    PyErr_Clear();
    return PyObject_Vectorcall(parts[TWIN], args, count & ~PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}

static Hook *make_hook(vectorcallfunc call, PyObject *timeline, PyObject *original, PyObject *twin)
{
    Hook *hook;
    PyTypeObject *type = Py_TYPE(timeline);
    if ((timeline_fast = offset_of(type, "fast")) < 0 || (timeline_hushed = offset_of(type, "hushed")) < 0 ||
        (timeline_left = offset_of(type, "left")) < 0 || (timeline_thread = offset_of(type, "thread")) < 0 ||
        (timeline_keeper = offset_of(type, "keeper")) < 0 || (timeline_steps = offset_of(type, "steps")) < 0)
        return NULL;
    type = Py_TYPE(AT(timeline, timeline_keeper));
    if ((keeper_batches = offset_of(type, "batches")) < 0 || (keeper_before = offset_of(type, "before")) < 0 ||
        (keeper_fed = offset_of(type, "fed")) < 0 || (keeper_samples = offset_of(type, "samples")) < 0 ||
        (keeper_stepped = offset_of(type, "stepped")) < 0 || (keeper_until = offset_of(type, "until")) < 0)
        return NULL;
    if ((hook = (Hook *)HookType.tp_alloc(&HookType, 0)) == NULL) return NULL;
    hook->call = call;
    hook->parts[ORIGINAL] = Py_NewRef(original);
    hook->parts[TWIN] = Py_NewRef(twin);
    hook->parts[TIMELINE] = Py_NewRef(timeline);
    hook->parts[KEEPER] = Py_NewRef(AT(timeline, timeline_keeper));
    hook->parts[STEPS] = Py_NewRef(AT(timeline, timeline_steps));
    return hook;
}

static PyObject *passing(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *timeline, *original, *twin;
    if (!PyArg_ParseTuple(args, "OOO", &timeline, &original, &twin)) return NULL;
    return (PyObject *)make_hook(call_passing, timeline, original, twin);
}

static PyObject *stepped(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *timeline, *twin;
    if (!PyArg_ParseTuple(args, "OO", &timeline, &twin)) return NULL;
    return (PyObject *)make_hook(call_stepped, timeline, Py_None, twin);
}

static PyObject *fetching(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *timeline, *loaders, *original, *twin, *tensor, *enabled;
    Hook *hook;
    if (!PyArg_ParseTuple(args, "OOOOO!O", &timeline, &loaders, &original, &twin, &PyType_Type, &tensor, &enabled)) return NULL;
    if ((loaders_iterator = offset_of(Py_TYPE(loaders), "_iterator")) < 0 || (loaders_slots = offset_of(Py_TYPE(loaders), "_slots")) < 0)
        return NULL;
    if ((hook = make_hook(call_fetching, timeline, original, twin)) == NULL) return NULL;
    if (Automatic == NULL || !PyObject_TypeCheck(hook->parts[STEPS], Automatic)) {
        Py_DECREF(hook);
        PyErr_SetString(PyExc_TypeError, "the steps are not those of `twins`");
        return NULL;
    }
    hook->parts[LOADERS] = Py_NewRef(loaders);
    hook->parts[TENSOR] = Py_NewRef(tensor);
    hook->parts[ENABLED] = Py_NewRef(enabled);
    return (PyObject *)hook;
}

static int ready_hooks(void)
{
    text_shape = PyUnicode_InternFromString("shape");
    text_count = PyUnicode_InternFromString("_count");
    text_end_fetch = PyUnicode_InternFromString("_end_fetch");
    return text_shape && text_count && text_end_fetch ? PyType_Ready(&HookType) : -1;
}
