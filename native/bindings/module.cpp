// Only the files of this folder know Python. Everything they call is plain C++ over spans.
#include "modules.hpp"

NB_MODULE(_native, module) {
  module.doc() = "Compiled kernels of tokenloom. Import tokenloom.kernels instead: it checks what it passes.";
  module.def("version", [] { return TOKENLOOM_VERSION; }, "The version of the Python files that this was built with.");
  nanobind::set_leak_warnings(false);
  tokenloom::bind_order(module);
  tokenloom::bind_storage(module);
  tokenloom::bind_memory(module);
  tokenloom::bind_blending(module);
  tokenloom::bind_walks(module);
  tokenloom::bind_samples(module);
  tokenloom::bind_masked(module);
  tokenloom::bind_builder(module);
  tokenloom::bind_chat(module);
  tokenloom::bind_checks(module);
  tokenloom::bind_computed(module);
  tokenloom::bind_packing(module);
  tokenloom::bind_texts(module);
  tokenloom::bind_ngrams(module);
}
