# The digest of everything that the objects of the CUDA kernels are made from: sources, headers, flags and compiler.
#
#     llm_kernels_sources_digest(ROOT NVCC OUT)     in a list file; ROOT is the folder csrc
#     cmake -DROOT=... -DNVCC=... -DFILE=... -P sources_digest.cmake     writes it to a file
function(llm_kernels_sources_digest root nvcc out)
  file(GLOB_RECURSE sources RELATIVE "${root}" "${root}/cuda/*.cu" "${root}/cuda/*.cuh" "${root}/cuda/*.h"
       "${root}/cuda/CMakeLists.txt" "${root}/include/*.h")
  list(SORT sources)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  foreach(source IN LISTS sources)
    file(SHA256 "${root}/${source}" digest)
    string(APPEND text "${source} ${digest}\n")
  endforeach()
  string(SHA256 digest "${text}")
  set(${out} "${digest}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  llm_kernels_sources_digest("${ROOT}" "${NVCC}" digest)
  file(WRITE "${FILE}" "${digest}")
endif()
