"""Named steps of a request, which only the tests' build has (`-DAEROBEE_STEPS`): each asks the
function `sys.aerobee_step`, if there is one, and in any other build there is nothing of it."""

cdef extern from *:
    """
    #ifdef AEROBEE_STEPS
    static int aerobee_step(const char *name) {
        PyObject *hook = PySys_GetObject("aerobee_step");
        PyObject *said;
        if (hook == NULL) return 0;
        said = PyObject_CallFunction(hook, "s", name);
        if (said == NULL) return -1;
        Py_DECREF(said);
        return 0;
    }
    #else
    #define aerobee_step(name) ((void) (name), 0)
    #endif
    """
    int step "aerobee_step"(const char *name) except -1
