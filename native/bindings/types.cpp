// Types about which something was found out, for as long as nobody changes them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "modules.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenloom {
namespace {

// What Python numbers the state of a type with: another number after any change of it, or of a class it inherits from;
// no number comes twice. 0 for a type that has none now.
std::uint32_t tag_of(const PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030D0000
  if ((type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) == 0) return 0;
#endif
  return type->tp_version_tag;
}

// Remembers types in their state, and says whether that of an object is one of them, and the object has no attributes
// of its own under some names. Needs the GIL.
class KnownTypes {
 public:
  explicit KnownTypes(const std::vector<std::string>& names) {
    for (const std::string& name : names) names_.push_back(nb::steal<nb::str>(PyUnicode_InternFromString(name.c_str())));
  }

  bool has(nb::handle object) const {
    PyTypeObject* type = Py_TYPE(object.ptr());
    const std::uint32_t tag = tag_of(type);
    return tag != 0 && tags_[tag % tags_.size()] == tag && (type->tp_dictoffset == 0 || has_none(object));
  }

  // Of two types that fall on one place the later one stays: who is not remembered is looked at again.
  void add(std::uint32_t tag) { tags_[tag % tags_.size()] = tag; }

 private:
  bool has_none(nb::handle object) const {
    const nb::object attributes = nb::steal(PyObject_GenericGetDict(object.ptr(), nullptr));
    if (!attributes.is_valid()) {
      PyErr_Clear();
      return false;
    }
    for (const nb::str& name : names_) {
      const int found = PyDict_Contains(attributes.ptr(), name.ptr());
      if (found < 0) PyErr_Clear();
      if (found != 0) return false;
    }
    return true;
  }

  std::vector<nb::str> names_;
  std::array<std::uint32_t, 256> tags_{};
};

}  // namespace

void bind_types(nb::module_& module) {
  nb::class_<KnownTypes>(module, "KnownTypes", "Types about which something holds as long as nobody changes them.")
      .def(nb::init<const std::vector<std::string>&>(), "names"_a)
      .def("has", &KnownTypes::has, "obj"_a.none())
      .def("add", &KnownTypes::add, "tag"_a);
  module.def("type_tag", [](nb::handle object) { return tag_of(Py_TYPE(object.ptr())); }, "obj"_a.none());
}

}  // namespace tokenloom
