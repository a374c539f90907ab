// One function per file of bindings; each adds its part to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace tokenloom {

void bind_blending(nanobind::module_& module);
void bind_builder(nanobind::module_& module);
void bind_chat(nanobind::module_& module);
void bind_checks(nanobind::module_& module);
void bind_computed(nanobind::module_& module);
void bind_masked(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_ngrams(nanobind::module_& module);
void bind_order(nanobind::module_& module);
void bind_packing(nanobind::module_& module);
void bind_samples(nanobind::module_& module);
void bind_storage(nanobind::module_& module);
void bind_texts(nanobind::module_& module);
void bind_walks(nanobind::module_& module);

}  // namespace tokenloom
