/* What compiled modules are compiled with, beside mypyc's own headers (`compiled.py`).

   CPython's interpreter remembers, at each place where a global name or an attribute is read, where it was found the
   last time. mypyc looks it up anew each time: a global name in the dictionary of its module, a field of a record by
   the descriptors of its class. Here are the two memories of CPython 3.11, with its own rules for when they hold:
   - Every change of a dictionary gives it a number that no other state of any dictionary has (`ma_version_tag`).
   - Every change of a class, or of a class above it, takes its number away (`tp_version_tag`), and no number is used
     twice.
   They are read and written under the interpreter's lock. Later versions of Python number other things, so there
   nothing is remembered and mypyc's own look-up stays.

   What only errors reach is `cold`: two of five instructions, which lie apart from what always runs. */

#if defined(__GNUC__) && __has_include(<CPy.h>)
#include <Python.h>
#include <structmember.h>
#include <CPy.h>

__typeof__(CPy_AddTraceback) CPy_AddTraceback __attribute__((cold));
__typeof__(CPy_AttributeError) CPy_AttributeError __attribute__((cold));
__typeof__(CPy_DecRef) CPy_DecRef __attribute__((cold));
__typeof__(CPy_TypeError) CPy_TypeError __attribute__((cold));
__typeof__(CPy_TypeErrorTraceback) CPy_TypeErrorTraceback __attribute__((cold));

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000 && defined(CPyObject_GetAttr)

/* A value of a dictionary that has not changed since. */
typedef struct {
    uint64_t version;
    PyObject *key;   /* a name; kept, so that no other one can come to lie in its place */
    PyObject *value; /* the dictionary's */
} DovetailGlobal;

static inline PyObject *dovetail_get_item(PyObject *dict, PyObject *key, DovetailGlobal *last) {
    if (likely(PyDict_CheckExact(dict))) {
        if (likely(((PyDictObject *)dict)->ma_version_tag == last->version && key == last->key)) {
            return Py_NewRef(last->value);
        }
        PyObject *value = CPyDict_GetItem(dict, key);
        if (value != NULL && PyUnicode_CheckExact(key) && PyUnicode_CHECK_INTERNED(key)) {
            if (key != last->key) {
                Py_INCREF(key);
                Py_XSETREF(last->key, key);
            }
            last->value = value;
            last->version = ((PyDictObject *)dict)->ma_version_tag;
        }
        return value;
    }
    return CPyDict_GetItem(dict, key);
}

/* Where a field lies in the objects of a class. */
typedef struct {
    unsigned int version;
    Py_ssize_t offset;
} DovetailField;

__attribute__((noinline, unused)) static PyObject *
dovetail_find_field(PyObject *object, PyObject *name, DovetailField *last) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *value = CPyObject_GetAttr(object, name);
    if (value != NULL && type->tp_getattro == PyObject_GenericGetAttr) {
        PyObject *found = _PyType_Lookup(type, name);
        if (found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type)
            && PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) {
            PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
            if (member->type == T_OBJECT_EX && PyType_IsSubtype(type, PyDescr_TYPE(found))) {
                last->version = type->tp_version_tag;
                last->offset = member->offset;
            }
        }
    }
    return value;
}

static inline PyObject *dovetail_get_attr(PyObject *object, PyObject *name, DovetailField *last) {
    PyTypeObject *type = Py_TYPE(object);
    if (likely(type->tp_version_tag == last->version && last->version != 0)) {
        PyObject *value = *(PyObject **)((char *)object + last->offset);
        if (likely(value != NULL)) {
            return Py_NewRef(value);
        }
    }
    return dovetail_find_field(object, name, last);
}

#define CPyDict_GetItem(dict, key) \
    ({ static DovetailGlobal dovetail_last; dovetail_get_item((dict), (key), &dovetail_last); })
#undef CPyObject_GetAttr
#define CPyObject_GetAttr(object, name) \
    ({ static DovetailField dovetail_last; dovetail_get_attr((object), (name), &dovetail_last); })

#endif
#endif
