// What PySequence_Fast gives, a list or a tuple: by macros, or by functions where Python's stable ABI has no others.
#pragma once

#include <nanobind/nanobind.h>

namespace tokenloom {

// Items of a list or tuple, which must outlive this. Size and items are those of now: Python code that runs meanwhile
// may change a list.
class Items {
 public:
  explicit Items(nanobind::handle sequence) : sequence_(sequence.ptr()), is_list_(PyList_Check(sequence.ptr())) {}

#ifdef Py_LIMITED_API
  Py_ssize_t size() const { return is_list_ ? PyList_Size(sequence_) : PyTuple_Size(sequence_); }

  // A borrowed reference; `index` must be less than `size()`.
  PyObject* operator[](Py_ssize_t index) const {
    return is_list_ ? PyList_GetItem(sequence_, index) : PyTuple_GetItem(sequence_, index);
  }
#else
  Py_ssize_t size() const { return is_list_ ? PyList_GET_SIZE(sequence_) : PyTuple_GET_SIZE(sequence_); }

  PyObject* operator[](Py_ssize_t index) const {
    return is_list_ ? PyList_GET_ITEM(sequence_, index) : PyTuple_GET_ITEM(sequence_, index);
  }
#endif

 private:
  PyObject* sequence_;
  bool is_list_;
};

}  // namespace tokenloom
