// Types about which something was found out, for as long as nobody changes them.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "modules.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tokenloom {
namespace {

// Where Python has these of a type. Its stable ABI does not say: there, `offsets_hold` looks whether they are where they
// are in all versions that are known.
#ifdef Py_LIMITED_API
constexpr std::size_t kAttributesOffset = 288, kTagOffset = 384;
#else
constexpr std::size_t kAttributesOffset = offsetof(PyTypeObject, tp_dictoffset);
constexpr std::size_t kTagOffset = offsetof(PyTypeObject, tp_version_tag);
#if PY_VERSION_HEX < 0x030F0000 && !defined(Py_GIL_DISABLED) && !defined(Py_TRACE_REFS)
static_assert(kAttributesOffset == 288 && kTagOffset == 384, "the stable ABI's offsets are not those of this Python");
#endif
#endif

template <typename Value>
Value value_at(const PyTypeObject* type, std::size_t offset) {
  Value value;
  std::memcpy(&value, reinterpret_cast<const char*>(type) + offset, sizeof(Value));
  return value;
}

std::uint32_t tag_at_offset(PyTypeObject* type) {
  constexpr unsigned long kHasTag = 1UL << 19;  // Py_TPFLAGS_VALID_VERSION_TAG, which says nothing from 3.13 on
  if (Py_Version < 0x030D0000 && (PyType_GetFlags(type) & kHasTag) == 0) return 0;
  return value_at<std::uint32_t>(type, kTagOffset);
}

bool offsets_hold() {
#ifdef Py_LIMITED_API
  if (Py_Version >= 0x030F0000) return false;  // nobody has looked yet
  // A class changes: its number does, too. An object of it has attributes, one of `int` has none.
  const nb::object probe = nb::handle(reinterpret_cast<PyObject*>(&PyType_Type))("Probe", nb::tuple(), nb::dict());
  auto* type = reinterpret_cast<PyTypeObject*>(probe.ptr());
  std::uint32_t before = 0;
  for (int value = 0; value < 3; ++value) {
    probe.attr("value") = value;
    if (tag_at_offset(type) != 0) return false;
    const nb::object asked = probe.attr("value");  // a class gets its number when it is asked for something
    const std::uint32_t tag = tag_at_offset(type);
    if (tag == 0 || tag == before) return false;
    before = tag;
  }
  return value_at<Py_ssize_t>(type, kAttributesOffset) != 0 &&
         value_at<Py_ssize_t>(&PyLong_Type, kAttributesOffset) == 0;
#else
  return true;
#endif
}

bool numbers_are_known = false;  // set once, when the module is imported

// What Python numbers the state of a type with: another number after any change of it, or of a class it inherits from;
// no number comes twice. 0 for a type that has none now.
std::uint32_t tag_of(PyTypeObject* type) {
  return numbers_are_known ? tag_at_offset(type) : 0;
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
    return tag != 0 && tags_[tag % tags_.size()] == tag &&
           (value_at<Py_ssize_t>(type, kAttributesOffset) == 0 || has_none(object));
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
  numbers_are_known = offsets_hold();
  nb::class_<KnownTypes>(module, "KnownTypes", "Types about which something holds as long as nobody changes them.")
      .def(nb::init<const std::vector<std::string>&>(), "names"_a)
      .def("has", &KnownTypes::has, "obj"_a.none())
      .def("add", &KnownTypes::add, "tag"_a);
  module.def("type_tag", [](nb::handle object) { return tag_of(Py_TYPE(object.ptr())); }, "obj"_a.none());
}

}  // namespace tokenloom
